//! A Kafka broker of a test's own, which it may stop, kill and start again, behind a proxy.
//!
//! Out of the jars that `cargo xtask services` has fetched for its own broker; who has that from Docker has none.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use einmal_services::images::{KAFKA_SETTINGS, KAFKA_VERSION};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rustix::process::{Pid, Signal, kill_process};

use crate::kafka::until;
use crate::kafka_secure::Secure;
use crate::proxy::Proxy;

/// Why a test that wants one is skipped.
pub const NONE_OF_ITS_OWN: &str = ": one of its own needs `cargo xtask services up --from programs`";

/// The broker, and the proxy through which its clients come. Dropped, it is killed.
#[derive(Debug)]
pub struct OwnBroker {
    /// All clients come through it: it is what the broker advertises.
    pub proxy: Proxy,
    classpath: String,
    directory: tempfile::TempDir,
    process: Option<Child>,
}

fn classpath() -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/services");
    let text = fs::read_to_string(root.join(format!("kafka-{KAFKA_VERSION}/classpath"))).ok()?;
    std::env::split_paths(text.trim()).all(|jar| jar.is_file()).then(|| text.trim().to_owned())
}

/// Below those that the system gives to clients: none of these may sit on it while the broker is away.
pub(crate) fn free_port() -> Result<u16> {
    let free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    (0..1_000).map(|_| rand::random_range(20_000..32_000)).find(free).context("no free port on loopback")
}

impl OwnBroker {
    /// Starts one and waits until it answers; `None` where its jars are not.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start() -> Result<Option<Self>> {
        Self::start_with(None).await
    }

    /// The same with these listeners beside its own, which clients come to without the proxy.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start_with(secure: Option<&Secure>) -> Result<Option<Self>> {
        let Some(classpath) = classpath() else { return Ok(None) };
        let directory = tempfile::tempdir()?;
        let (port, controller) = (free_port()?, free_port()?);
        let proxy = Proxy::start(format!("127.0.0.1:{port}")).await?;
        let more = secure.map(Secure::listeners).unwrap_or_default();
        let protocols = secure.map_or("", |_| Secure::PROTOCOLS);
        let mut lines = vec![
            "node.id=1".to_owned(),
            "process.roles=broker,controller".to_owned(),
            format!("listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{more}"),
            format!("advertised.listeners=PLAINTEXT://{}{more}", proxy.address()),
            "controller.listener.names=CONTROLLER".to_owned(),
            format!("listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}"),
            format!("controller.quorum.voters=1@127.0.0.1:{controller}"),
            format!("log.dirs={}", directory.path().join("data").display()),
        ];
        lines.extend(KAFKA_SETTINGS.iter().map(|(name, value)| format!("{name}={value}")));
        lines.extend(secure.map(Secure::lines).into_iter().flatten());
        let mut broker = Self { proxy, classpath, directory, process: None };
        fs::write(broker.settings(), lines.join("\n"))?;
        let formatted = broker
            .java("kafka.tools.StorageTool")?
            .args(["format", "--cluster-id", "ZWlubWFsLXRlc3RzLTAwMQ", "--config"])
            .arg(broker.settings())
            .args(secure.map(Secure::user).into_iter().flatten())
            .status()?;
        ensure!(formatted.success(), "its storage could not be formatted");
        broker.run().await?;
        Ok(Some(broker))
    }

    /// Turns a bit around in the batch that holds this offset of partition 0 of a topic. It must not be running.
    ///
    /// # Errors
    /// When there is no such batch in its first segment.
    pub fn damage(&self, topic: &str, offset: u64) -> Result<()> {
        ensure!(self.process.is_none(), "it runs");
        let segment = self.directory.path().join(format!("data/{topic}-0/00000000000000000000.log"));
        let mut bytes = fs::read(&segment)?;
        // A batch begins with its first offset and its length; its last offset is counted from the first.
        let number = |bytes: &[u8], from: usize, len: usize| {
            let field = bytes.get(from..from + len).context("no such batch")?;
            anyhow::Ok(field.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
        };
        let mut at = 0;
        loop {
            let (first, len) = (number(&bytes, at, 8)?, number(&bytes, at + 8, 4)?);
            let (last, next) = (first + number(&bytes, at + 23, 4)?, at + 12 + usize::try_from(len)?);
            if last >= offset {
                // In its last record.
                *bytes.get_mut(next - 2).context("no such batch")? ^= 1;
                return Ok(fs::write(&segment, bytes)?);
            }
            at = next;
        }
    }

    fn settings(&self) -> PathBuf {
        self.directory.path().join("server.properties")
    }

    fn java(&self, class: &str) -> Result<Command> {
        let log = File::options().create(true).append(true).open(self.directory.path().join("log"))?;
        let mut command = Command::new("java");
        command.args(["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData"]);
        command.args(["-cp", &self.classpath, class]).current_dir(self.directory.path());
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    /// Starts the process again, and waits until it answers.
    ///
    /// # Errors
    /// When it does not.
    pub async fn run(&mut self) -> Result<()> {
        let child = self.java("kafka.Kafka")?.arg(self.settings()).spawn().context("java")?;
        let process = self.process.insert(child);
        let mut client = ClientConfig::new();
        let consumer: BaseConsumer =
            client.set("bootstrap.servers", self.proxy.address().to_string()).create()?;
        until("an answer of the broker", || {
            ensure!(process.try_wait()?.is_none(), "the broker ended");
            Ok(consumer.fetch_metadata(None, std::time::Duration::from_secs(1)).is_ok())
        })
        .await
    }

    /// Sends its process a signal.
    ///
    /// # Errors
    /// When it is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.process.as_ref().context("it does not run")?.id();
        let id = Pid::from_raw(i32::try_from(id)?).context("no process id")?;
        Ok(kill_process(id, signal)?)
    }

    /// Waits for the end of its process.
    ///
    /// # Errors
    /// When there is none.
    pub fn wait(&mut self) -> Result<()> {
        self.process.take().context("it does not run")?.wait()?;
        Ok(())
    }
}

impl Drop for OwnBroker {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It can be stopped, and dies of this all the same.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
