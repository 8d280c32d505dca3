//! The workspace claims a `rust-version`. No dependency may ask for a newer one.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::command::{capture, cargo};

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    rust_version: Option<String>,
}

type Version = (u64, u64, u64);

pub(super) fn run(root: &Path) -> Result<()> {
    let json = capture(cargo(root).args([
        "metadata",
        "--format-version",
        "1",
        "--all-features",
        // A lock file that does not fit the manifests is a fault too.
        "--locked",
    ]))?;
    let metadata = serde_json::from_str(&json).context("cannot read `cargo metadata`")?;
    let newer = newer_than_claimed(&metadata)?;
    if !newer.is_empty() {
        bail!("newer than the workspace claims: {}", newer.join(", "));
    }
    Ok(())
}

fn newer_than_claimed(metadata: &Metadata) -> Result<Vec<String>> {
    let (members, dependencies): (Vec<_>, Vec<_>) =
        metadata.packages.iter().partition(|package| metadata.workspace_members.contains(&package.id));

    let mut claimed = None;
    for member in members {
        let version = required(member)?.with_context(|| format!("{} claims no rust-version", member.name))?;
        // The lowest claim is the promise.
        claimed = Some(claimed.map_or(version, |lowest: Version| lowest.min(version)));
    }
    let claimed = claimed.context("the workspace has no members")?;

    let mut newer = Vec::new();
    for package in dependencies {
        if required(package)?.is_some_and(|version| version > claimed) {
            let asks = package.rust_version.as_deref().unwrap_or_default();
            newer.push(format!("{} {} ({asks})", package.name, package.version));
        }
    }
    Ok(newer)
}

fn required(package: &Package) -> Result<Option<Version>> {
    package
        .rust_version
        .as_deref()
        .map(|text| parse(text).with_context(|| format!("{}: odd rust-version `{text}`", package.name)))
        .transpose()
}

/// `1.88` and `1.88.0` are the same.
fn parse(text: &str) -> Option<Version> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    let version = (parts.next()??, parts.next().unwrap_or(Some(0))?, parts.next().unwrap_or(Some(0))?);
    parts.next().is_none().then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, rust_version: Option<&str>) -> Package {
        Package {
            id: name.to_owned(),
            name: name.to_owned(),
            version: "1.2.3".to_owned(),
            rust_version: rust_version.map(str::to_owned),
        }
    }

    fn workspace(member: Option<&str>, dependencies: &[(&str, Option<&str>)]) -> Metadata {
        let mut packages = vec![package("member", member)];
        packages.extend(dependencies.iter().map(|(name, asks)| package(name, *asks)));
        Metadata { packages, workspace_members: vec!["member".to_owned()] }
    }

    #[test]
    fn reads_versions_of_one_to_three_parts() {
        assert_eq!(parse("1"), Some((1, 0, 0)));
        assert_eq!(parse("1.88"), Some((1, 88, 0)));
        assert_eq!(parse("1.88.2"), Some((1, 88, 2)));
        for odd in ["", "1.", "1.88.0.1", "1.x", "nightly"] {
            assert_eq!(parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert!(parse("1.100") > parse("1.88"));
        assert!(parse("1.88.0") == parse("1.88"));
        assert!(parse("1.88.1") > parse("1.88"));
    }

    #[test]
    fn equal_older_or_silent_dependencies_pass() {
        let metadata =
            workspace(Some("1.88"), &[("same", Some("1.88.0")), ("old", Some("1.9")), ("mute", None)]);
        assert!(newer_than_claimed(&metadata).unwrap().is_empty());
    }

    #[test]
    fn newer_dependencies_are_named() {
        let metadata = workspace(Some("1.88"), &[("new", Some("1.90")), ("old", Some("1.60"))]);
        assert_eq!(newer_than_claimed(&metadata).unwrap(), ["new 1.2.3 (1.90)"]);
    }

    #[test]
    fn the_lowest_claim_of_a_member_counts() {
        let mut metadata = workspace(Some("1.90"), &[("dep", Some("1.88"))]);
        metadata.packages.push(package("humble", Some("1.80")));
        metadata.workspace_members.push("humble".to_owned());
        assert_eq!(newer_than_claimed(&metadata).unwrap(), ["dep 1.2.3 (1.88)"]);
    }

    #[test]
    fn a_member_without_a_claim_is_an_error() {
        let error = newer_than_claimed(&workspace(None, &[])).unwrap_err();
        assert!(error.to_string().contains("member claims no rust-version"));
    }

    #[test]
    fn reads_what_cargo_writes() {
        let json = r#"{
            "packages": [
                {"id": "path+x#einmal@0.1.0", "name": "einmal", "version": "0.1.0", "rust_version": "1.88", "edition": "2024"},
                {"id": "registry+y#sled@0.34.7", "name": "sled", "version": "0.34.7", "rust_version": null}
            ],
            "workspace_members": ["path+x#einmal@0.1.0"],
            "version": 1
        }"#;
        let metadata = serde_json::from_str(json).unwrap();
        assert!(newer_than_claimed(&metadata).unwrap().is_empty());
    }
}
