//! What the settings ask of the client, against what its build can do.
//!
//! The client is asked, and not this crate's own features: another crate of the program can have turned more on.

use std::collections::BTreeSet;

use einmal::InvalidSetting;
use rdkafka::ClientConfig;

/// Refuses what needs a part of the client that this build is without.
pub(crate) fn features(client: &ClientConfig) -> Result<(), InvalidSetting> {
    check(client, &built_in())
}

/// The parts of the client, by the names that it gives them. None if it does not tell: then it says itself, when
/// it is made, what it can't do.
fn built_in() -> BTreeSet<String> {
    let told = ClientConfig::new().create_native_config().and_then(|native| native.get("builtin.features"));
    let text = told.unwrap_or_default();
    // It may end with a zero.
    text.trim_end_matches('\0').split(',').map(|part| part.trim().to_owned()).collect()
}

fn check(client: &ClientConfig, built_in: &BTreeSet<String>) -> Result<(), InvalidSetting> {
    let has = |part: &str| built_in.contains(part);
    let value = |field: &str| client.get(field).unwrap_or_default().to_ascii_lowercase();
    let without = |what: &str, feature: &str| {
        format!(
            "can't be used, for this build has no {what}: turn on the feature `{feature}` of einmal-kafka"
        )
    };

    let protocol = value("security.protocol");
    if protocol.ends_with("ssl") && !has("ssl") {
        return Err(InvalidSetting::new("security.protocol", without("TLS", "tls")));
    }
    let mut fields = client.config_map().into_keys();
    let of_tls = |field: &str| field.starts_with("ssl.") || field.starts_with("enable.ssl.");
    if let Some(field) = fields.find(|field| of_tls(field)).filter(|_| !has("ssl")) {
        return Err(InvalidSetting::new("ssl", format!("{field} is set, but {}", without("TLS", "tls"))));
    }
    if protocol.starts_with("sasl") {
        mechanism(client, &has)?;
    }
    for field in ["compression.codec", "compression.type"] {
        if value(field) == "zstd" && !has("zstd") {
            return Err(InvalidSetting::new(field, without("zstd", "zstd")));
        }
    }
    Ok(())
}

fn mechanism(client: &ClientConfig, has: &dyn Fn(&str) -> bool) -> Result<(), InvalidSetting> {
    const FIELD: &str = "sasl.mechanism";
    let named = client.get(FIELD).or_else(|| client.get("sasl.mechanisms")).map(str::to_ascii_uppercase);
    let problem = match named.as_deref() {
        // The client's own default.
        None if !has("sasl_gssapi") => {
            "must be set, to PLAIN or SCRAM-SHA-512 for example: Kerberos, the client's default, is not in this \
             build. For that turn on the feature `gssapi` of rdkafka"
        }
        Some("GSSAPI") if !has("sasl_gssapi") => {
            "can't be used, for this build has no Kerberos: turn on the feature `gssapi` of rdkafka"
        }
        Some(scram) if scram.starts_with("SCRAM") && !has("sasl_scram") => {
            "can't be used, for this build has no SCRAM: turn on the feature `sasl` of einmal-kafka"
        }
        Some("OAUTHBEARER") if !has("sasl_oauthbearer") => {
            "can't be used, for this build has no OAUTHBEARER: turn on the feature `sasl` of einmal-kafka"
        }
        Some("OAUTHBEARER") => return token(client, has),
        _ => return Ok(()),
    };
    Err(InvalidSetting::new(FIELD, problem))
}

/// Without one of these the client would wait for a token for ever, and say nothing.
fn token(client: &ClientConfig, has: &dyn Fn(&str) -> bool) -> Result<(), InvalidSetting> {
    const FIELD: &str = "sasl.oauthbearer.method";
    let oidc = client.get(FIELD).is_some_and(|method| method.eq_ignore_ascii_case("oidc"));
    let unsecure = client.get("enable.sasl.oauthbearer.unsecure.jwt").unwrap_or_default();
    match oidc {
        true if has("oidc") => Ok(()),
        true => Err(InvalidSetting::new(
            FIELD,
            "can't be used, for this build has no OIDC: turn on the feature `curl` of rdkafka",
        )),
        false if ["true", "t", "1"].contains(&unsecure) => Ok(()),
        false => Err(InvalidSetting::new(FIELD, "must be oidc: nobody gives tokens to the client by hand")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [&str; 7] =
        ["ssl", "sasl_gssapi", "sasl_plain", "sasl_scram", "sasl_oauthbearer", "oidc", "zstd"];

    /// What is said without one part, which must be nothing with all.
    fn without(part: &str, settings: &[(&str, &str)]) -> String {
        let mut client = ClientConfig::new();
        for (field, value) in settings {
            client.set(*field, *value);
        }
        let mut parts = BTreeSet::from(ALL.map(str::to_owned));
        check(&client, &parts).unwrap();
        assert!(parts.remove(part));
        check(&client, &parts).unwrap_err().to_string()
    }

    #[test]
    fn what_a_build_can_not_do_is_refused_by_the_name_of_the_feature() {
        let says = |part, settings: &[(&str, &str)], feature: &str| {
            let said = without(part, settings);
            let whole = said.contains(&format!("the feature `{feature}`")) && !said.contains("hush");
            assert!(whole && !said.contains('\n'), "{said}");
        };
        says("ssl", &[("security.protocol", "SSL")], "tls");
        says("ssl", &[("security.protocol", "sasl_ssl"), ("sasl.mechanism", "PLAIN")], "tls");
        says("ssl", &[("ssl.key.pem", "hush")], "tls");
        says("ssl", &[("enable.ssl.certificate.verification", "true")], "tls");
        let over = ("security.protocol", "SASL_PLAINTEXT");
        says("sasl_scram", &[over, ("sasl.mechanisms", "SCRAM-SHA-256"), ("sasl.password", "hush")], "sasl");
        says("sasl_scram", &[over, ("sasl.mechanism", "scram-sha-512")], "sasl");
        says("sasl_gssapi", &[over], "gssapi");
        says("sasl_gssapi", &[over, ("sasl.mechanism", "GSSAPI")], "gssapi");
        let oidc = [over, ("sasl.mechanism", "OAUTHBEARER"), ("sasl.oauthbearer.method", "oidc")];
        says("sasl_oauthbearer", &oidc, "sasl");
        says("oidc", &oidc, "curl");
        says("zstd", &[("compression.codec", "zstd")], "zstd");
        says("zstd", &[("compression.type", "ZSTD")], "zstd");
    }

    #[test]
    fn a_token_that_nobody_would_bring_is_refused() {
        let parts = BTreeSet::from(ALL.map(str::to_owned));
        let mut client = ClientConfig::new();
        client.set("security.protocol", "sasl_plaintext").set("sasl.mechanism", "OAUTHBEARER");
        assert_eq!(check(&client, &parts).unwrap_err().field(), "sasl.oauthbearer.method");
        client.set("enable.sasl.oauthbearer.unsecure.jwt", "true");
        check(&client, &parts).unwrap();
    }

    #[test]
    fn what_every_build_can_do_is_accepted_in_every_build() {
        let mut client = ClientConfig::new();
        client.set("security.protocol", "SASL_PLAINTEXT").set("sasl.mechanism", "PLAIN");
        client.set("sasl.username", "u").set("sasl.password", "p").set("compression.type", "lz4");
        features(&client).unwrap();
        assert!(client.create::<rdkafka::producer::BaseProducer>().is_ok());
        // Not used without SASL.
        client.set("security.protocol", "plaintext").set("sasl.mechanism", "SCRAM-SHA-512");
        features(&client).unwrap();
    }

    /// The client takes what passes here, and tells of what the features bring under these names.
    #[test]
    fn the_features_bring_what_they_say() {
        let there = built_in();
        assert!(there.contains("sasl_plain"), "{there:?}");
        let brings = |on: bool, parts: &[&str]| {
            let missing: Vec<_> = parts.iter().filter(|part| !there.contains(**part)).collect();
            assert!(!on || missing.is_empty(), "{missing:?} of {there:?}");
        };
        brings(cfg!(feature = "tls"), &["ssl"]);
        brings(cfg!(feature = "sasl"), &["sasl_plain", "sasl_scram", "sasl_oauthbearer"]);
        brings(cfg!(feature = "zstd"), &["zstd"]);
        for settings in [
            [("security.protocol", "sasl_ssl"), ("sasl.mechanism", "SCRAM-SHA-512")],
            [("compression.codec", "zstd"), ("security.protocol", "plaintext")],
            [("ssl.endpoint.identification.algorithm", "none"), ("security.protocol", "ssl")],
        ] {
            let mut client = ClientConfig::new();
            for (field, value) in settings {
                client.set(field, value);
            }
            client.set("sasl.username", "u").set("sasl.password", "p");
            let made = client.create::<rdkafka::producer::BaseProducer>().map(drop);
            assert_eq!(made.is_ok(), features(&client).is_ok(), "{settings:?}: {made:?}");
        }
    }
}
