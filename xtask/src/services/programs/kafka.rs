//! Kafka: one node that is broker and controller, out of Maven's jars.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use einmal_services::Service;
use einmal_services::images::{KAFKA_SETTINGS, KAFKA_VERSION};

use super::super::state::folder;
use super::{Place, Started, free_ports, which};

const OLDEST_JAVA: u32 = 17;
/// Pinned like everything else; its newest may want a newer Maven.
const RESOLVE: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath";
/// The base64 of `einmal-tests-001`. A cluster of tests needs no other.
const CLUSTER: &str = "ZWlubWFsLXRlc3RzLTAwMQ";

pub(super) fn missing(root: &Path) -> Vec<&'static str> {
    let mut missing = Vec::new();
    if java().is_none() {
        // What Debian 12 has. A later one has a newer Java, as its default.
        let seventeen = Command::new("apt-cache").args(["show", "openjdk-17-jre-headless"]).output();
        let there = seventeen.is_ok_and(|output| output.status.success());
        missing.push(if there || debian_12() { "openjdk-17-jre-headless" } else { "default-jre-headless" });
    }
    if classpath(&cache(root)).is_none() && which("mvn").is_none() {
        missing.push("maven");
    }
    missing
}

/// Before the first `apt-get update` apt knows no package at all.
fn debian_12() -> bool {
    fs::read_to_string("/etc/os-release").is_ok_and(|text| text.contains("VERSION_ID=\"12\""))
}

/// A Java that is new enough.
fn java() -> Option<PathBuf> {
    let home = std::env::var_os("JAVA_HOME").map(|home| PathBuf::from(home).join("bin/java"));
    home.into_iter().chain(which("java")).find(|java| {
        let output = Command::new(java).arg("-version").output();
        output.is_ok_and(|output| release(&String::from_utf8_lossy(&output.stderr)) >= Some(OLDEST_JAVA))
    })
}

/// Out of `openjdk version "17.0.15" …`. An old `1.8` is a 1, and too old either way.
fn release(text: &str) -> Option<u32> {
    let version = text.split('"').nth(1)?;
    version.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

/// It outlives the service: only the first start asks Maven.
fn cache(root: &Path) -> PathBuf {
    folder(root).join(format!("kafka-{KAFKA_VERSION}"))
}

/// The jars, when Maven named them before and all are still there.
fn classpath(cache: &Path) -> Option<String> {
    let text = fs::read_to_string(cache.join("classpath")).ok()?;
    let text = text.trim();
    let whole = !text.is_empty() && std::env::split_paths(text).all(|jar| jar.is_file());
    whole.then(|| text.to_owned())
}

fn resolve(place: &Place<'_>) -> Result<String> {
    let cache = cache(place.root);
    if let Some(found) = classpath(&cache) {
        return Ok(found);
    }
    let maven = which("mvn").context("no mvn here to fetch Kafka with")?;
    fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    let pom = cache.join("pom.xml");
    fs::write(&pom, include_str!("kafka-pom.xml").replace("@KAFKA_VERSION@", KAFKA_VERSION))?;
    eprintln!("fetching Kafka {KAFKA_VERSION} with Maven, unless it has it");
    // Under another name until it is whole.
    let next = cache.join("classpath.next");
    let mut command = Command::new(maven);
    if !place.fetch {
        // It may have all of it from before.
        command.arg("--offline");
    }
    place.run(
        command
            .args(["--batch-mode", "--quiet", "--file"])
            .arg(&pom)
            .arg(RESOLVE)
            .arg("-DincludeScope=runtime")
            .arg(format!("-Dmdep.outputFile={}", next.display())),
    )?;
    fs::rename(&next, cache.join("classpath"))?;
    match classpath(&cache) {
        Some(found) => Ok(found),
        None => bail!("Maven named jars that are not there"),
    }
}

pub(super) fn start(place: &Place<'_>) -> Result<Started> {
    let java = java().with_context(|| format!("no Java {OLDEST_JAVA} or newer here"))?;
    let classpath = resolve(place)?;
    let [port, controller] = free_ports()?;
    let properties = place.dir.join("server.properties");
    fs::write(&properties, settings(&place.dir.join("data"), port, controller))?;
    let logging = place.dir.join("log4j2.properties");
    fs::write(&logging, LOGGING)?;

    let java = |class: &str| {
        let mut command = Command::new(&java);
        command
            // A small broker on a machine of two cores.
            .args(["-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-Djava.awt.headless=true"])
            // It would leave a file in the folder that all share.
            .arg("-XX:-UsePerfData")
            .arg(format!("-Dlog4j2.configurationFile={}", logging.display()))
            .args(["-cp", &classpath, class]);
        command
    };
    place.run(
        java("kafka.tools.StorageTool")
            .arg("format")
            .args(["--cluster-id", CLUSTER, "--config"])
            .arg(&properties),
    )?;
    let child = place.spawn(java("kafka.Kafka").arg(&properties))?;
    Ok(Started {
        address: Service::Kafka.address_at("127.0.0.1", port),
        children: vec![("kafka", child)],
        version: Some(KAFKA_VERSION.to_owned()),
    })
}

fn settings(data: &Path, port: u16, controller: u16) -> String {
    let mut lines = vec![
        "node.id=1".to_owned(),
        "process.roles=broker,controller".to_owned(),
        format!("listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}"),
        format!("advertised.listeners=PLAINTEXT://127.0.0.1:{port}"),
        "controller.listener.names=CONTROLLER".to_owned(),
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned(),
        format!("controller.quorum.voters=1@127.0.0.1:{controller}"),
        format!("log.dirs={}", data.display()),
        // Threads for two cores.
        "num.network.threads=2".to_owned(),
        "num.io.threads=2".to_owned(),
        "background.threads=2".to_owned(),
    ];
    lines.extend(KAFKA_SETTINGS.iter().map(|(name, value)| format!("{name}={value}")));
    lines.join("\n") + "\n"
}

const LOGGING: &str = "\
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=[%d] %p %m (%c)%n
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_release_of_java() {
        assert_eq!(release("openjdk version \"17.0.15\" 2025-04-15\n"), Some(17));
        assert_eq!(release("openjdk version \"21\" 2023-09-19"), Some(21));
        assert_eq!(release("java version \"1.8.0_402\""), Some(1));
        assert_eq!(release("no such thing"), None);
    }

    #[test]
    fn a_classpath_with_a_hole_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(classpath(folder.path()), None);
        let jar = folder.path().join("a.jar");
        fs::write(folder.path().join("classpath"), format!("{}\n", jar.display())).unwrap();
        assert_eq!(classpath(folder.path()), None);
        fs::write(&jar, "").unwrap();
        assert_eq!(classpath(folder.path()).as_deref(), jar.to_str());
    }

    #[test]
    fn the_broker_listens_on_loopback_only() {
        let settings = settings(Path::new("/data"), 1, 2);
        let listeners = settings.lines().find(|line| line.starts_with("listeners=")).unwrap();
        assert_eq!(listeners, "listeners=PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2");
    }
}
