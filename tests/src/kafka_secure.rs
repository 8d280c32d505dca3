//! Listeners of a test's own broker that ask for TLS, for a certificate, or for a password.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rdkafka::ClientConfig;

use crate::kafka_broker::free_port;

/// The user that the broker knows. A password is part of it that no other text holds.
pub const USER: &str = "einmal";

/// Certificates, a password, and where the broker listens.
#[derive(Debug)]
pub struct Secure {
    directory: tempfile::TempDir,
    password: String,
    tls: u16,
    mutual: u16,
    sasl: u16,
}

impl Secure {
    /// Makes certificates: of an authority, of a broker and a client that it vouches for, and of another authority
    /// and its client.
    ///
    /// # Errors
    /// When `openssl` does not make them.
    pub fn new() -> Result<Self> {
        let secure = Self {
            directory: tempfile::tempdir()?,
            password: format!("hush-{:016x}", rand::random::<u64>()),
            tls: free_port()?,
            mutual: free_port()?,
            sasl: free_port()?,
        };
        for (name, by) in [
            ("authority", None),
            ("broker", Some("authority")),
            ("client", Some("authority")),
            ("stranger", None),
            ("stranger-client", Some("stranger")),
        ] {
            secure.certify(name, by)?;
        }
        // What Kafka takes as a key store: the key, and its certificate.
        let both = [secure.file("broker.key"), secure.file("broker.pem")].map(fs::read_to_string);
        let [key, certificate] = both;
        fs::write(secure.file("broker.store"), key? + &certificate?)?;
        Ok(secure)
    }

    fn certify(&self, name: &str, by: Option<&str>) -> Result<()> {
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]);
        command.args(["-days", "2", "-subj", &format!("/CN={name}")]);
        command.arg("-keyout").arg(self.file(&format!("{name}.key")));
        command.arg("-out").arg(self.file(&format!("{name}.pem")));
        if let Some(by) = by {
            command.arg("-CA").arg(self.file(&format!("{by}.pem")));
            command.arg("-CAkey").arg(self.file(&format!("{by}.key")));
            command.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
            command.args(["-addext", "subjectAltName=IP:127.0.0.1"]);
        }
        let done = command.stdin(Stdio::null()).output().context("openssl")?;
        ensure!(done.status.success(), "no certificate: {}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// To be found nowhere.
    #[must_use]
    pub fn password(&self) -> &str {
        &self.password
    }

    /// The listeners by name, as the broker's settings want them.
    pub(crate) fn listeners(&self) -> String {
        let of = |name: &str, port: u16| format!(",{name}://127.0.0.1:{port}");
        [of("TLS", self.tls), of("MUTUAL", self.mutual), of("SASL", self.sasl)].concat()
    }

    /// What each listener speaks.
    pub(crate) const PROTOCOLS: &str = ",TLS:SSL,MUTUAL:SSL,SASL:SASL_SSL";

    /// The broker's further settings.
    pub(crate) fn lines(&self) -> Vec<String> {
        let modules = "org.apache.kafka.common.security";
        let at = |name: &str| self.file(name).display().to_string();
        vec![
            "ssl.keystore.type=PEM".to_owned(),
            format!("ssl.keystore.location={}", at("broker.store")),
            "ssl.truststore.type=PEM".to_owned(),
            format!("ssl.truststore.location={}", at("authority.pem")),
            "listener.name.mutual.ssl.client.auth=required".to_owned(),
            "listener.name.sasl.sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN".to_owned(),
            format!(
                "listener.name.sasl.scram-sha-512.sasl.jaas.config={modules}.scram.ScramLoginModule required;"
            ),
            format!(
                "listener.name.sasl.plain.sasl.jaas.config={modules}.plain.PlainLoginModule required \
                 user_{USER}=\"{}\";",
                self.password
            ),
        ]
    }

    /// What the broker's storage is formatted with, so that it knows the user.
    pub(crate) fn user(&self) -> [String; 2] {
        let user = format!("SCRAM-SHA-512=[name={USER},password={}]", self.password);
        ["--add-scram".to_owned(), user]
    }

    /// Makes `client` trust the broker's authority, and talk to the listener that asks for nothing more.
    pub fn over_tls(&self, client: &mut ClientConfig) {
        self.over(client, self.tls, "ssl");
    }

    /// The same to the listener that asks for a certificate. None is given.
    pub fn over_mutual_tls(&self, client: &mut ClientConfig) {
        self.over(client, self.mutual, "ssl");
    }

    /// The same to the listener that asks for a password, and gives it.
    pub fn over_sasl(&self, client: &mut ClientConfig, mechanism: &str) {
        self.over(client, self.sasl, "sasl_ssl");
        client.set("sasl.mechanism", mechanism);
        client.set("sasl.username", USER).set("sasl.password", &self.password);
    }

    fn over(&self, client: &mut ClientConfig, port: u16, protocol: &str) {
        client.set("bootstrap.servers", format!("127.0.0.1:{port}")).set("security.protocol", protocol);
        self.trusting(client, "authority");
    }

    /// Makes `client` trust what this authority vouches for: `authority`, or `stranger`.
    pub fn trusting(&self, client: &mut ClientConfig, authority: &str) {
        client.set("ssl.ca.location", shown(&self.file(&format!("{authority}.pem"))));
    }

    /// Gives `client` a certificate: of `client`, or of `stranger-client`.
    pub fn as_client(&self, client: &mut ClientConfig, name: &str) {
        client.set("ssl.certificate.location", shown(&self.file(&format!("{name}.pem"))));
        client.set("ssl.key.location", shown(&self.file(&format!("{name}.key"))));
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
