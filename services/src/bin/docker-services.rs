//! Starts containers for `cargo xtask services`, and leaves them running.
//!
//! `docker-services LABEL kafka=PORT …` publishes each service on that port of loopback. It writes one line for
//! each container that is up, `kafka CONTAINER`, and all carry the label `einmal.services=LABEL`, so that what
//! was started is found again whatever happens here.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use einmal_services::Service;
use einmal_services::images::{Image, KAFKA_SETTINGS};
use testcontainers::core::wait::LogWaitStrategy;
use testcontainers::core::{IntoContainerPort, WaitFor};
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerRequest, GenericImage, ImageExt};

/// The pull comes before; this is the start alone.
const START: Duration = Duration::from_secs(180);

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        // Each fault was told.
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all are up.
fn run() -> Result<bool> {
    let mut arguments = std::env::args().skip(1);
    let label = arguments.next().context("docker-services LABEL SERVICE=PORT…")?;
    let wanted = arguments.map(|argument| parse(&argument)).collect::<Result<Vec<_>>>()?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut all = true;
        for (service, port) in wanted {
            match start(&label, service, port).await {
                Ok(id) => println!("{service} {id}"),
                Err(error) => {
                    eprintln!("error: {service}: {error:#}");
                    all = false;
                }
            }
        }
        Ok(all)
    })
}

fn parse(argument: &str) -> Result<(Service, u16)> {
    let (name, port) = argument.split_once('=').with_context(|| format!("not SERVICE=PORT: {argument}"))?;
    let service = name.parse().map_err(anyhow::Error::msg)?;
    Ok((service, port.parse().with_context(|| format!("not a port: {port}"))?))
}

async fn start(label: &str, service: Service, port: u16) -> Result<String> {
    let container = request(label, service, port)?.start().await?;
    let id = container.id().to_owned();
    // To drop it would remove the container. `cargo xtask services down` does that.
    std::mem::forget(container);
    Ok(id)
}

fn request(label: &str, service: Service, port: u16) -> Result<ContainerRequest<GenericImage>> {
    let image = Image::of(service).context("a service without an image")?;
    // Kafka connects to itself at the address that it tells its clients, so the port is the same inside.
    let inside = if service == Service::Kafka { port } else { image.port };
    let (message, times) = image.ready;
    let mut request = GenericImage::new(image.name, image.tag)
        .with_exposed_port(inside.tcp())
        .with_wait_for(WaitFor::log(LogWaitStrategy::stdout_or_stderr(message).with_times(times)))
        .with_mapped_port(port, inside.tcp())
        .with_label("einmal.services", label)
        .with_startup_timeout(START)
        // Docker would listen everywhere.
        .with_host_config_modifier(|config| {
            for binding in
                config.port_bindings.iter_mut().flat_map(|ports| ports.values_mut()).flatten().flatten()
            {
                binding.host_ip = Some("127.0.0.1".to_owned());
            }
        });
    for (name, value) in environment(service, port) {
        request = request.with_env_var(name, value);
    }
    Ok(request)
}

/// As in `compose.yaml`, but for the ports.
fn environment(service: Service, port: u16) -> Vec<(String, String)> {
    let pairs = match service {
        Service::Kafka => {
            // Any other port but the first.
            let controller = if port == 9093 { 9094 } else { 9093 };
            let own = [
                ("NODE_ID", "1".to_owned()),
                ("PROCESS_ROLES", "broker,controller".to_owned()),
                ("LISTENERS", format!("PLAINTEXT://:{port},CONTROLLER://:{controller}")),
                ("ADVERTISED_LISTENERS", format!("PLAINTEXT://127.0.0.1:{port}")),
                ("CONTROLLER_LISTENER_NAMES", "CONTROLLER".to_owned()),
                ("LISTENER_SECURITY_PROTOCOL_MAP", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned()),
                ("CONTROLLER_QUORUM_VOTERS", format!("1@localhost:{controller}")),
                ("HEAP_OPTS", "-Xmx512m".to_owned()),
            ];
            let own = own.into_iter().map(|(name, value)| (format!("KAFKA_{name}"), value));
            let shared = KAFKA_SETTINGS.iter().map(|(name, value)| {
                (format!("KAFKA_{}", name.replace('.', "_").to_uppercase()), (*value).to_owned())
            });
            return own.chain(shared).collect();
        }
        Service::Postgres => vec![
            ("POSTGRES_USER", "einmal"),
            ("POSTGRES_DB", "postgres"),
            ("POSTGRES_HOST_AUTH_METHOD", "trust"),
        ],
        Service::RabbitMq | Service::Redis => Vec::new(),
    };
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use testcontainers::Image as _;

    use super::*;

    #[test]
    fn arguments_are_checked() {
        assert_eq!(parse("redis=6379").unwrap(), (Service::Redis, 6379));
        for odd in ["redis", "mysql=1", "redis=70000"] {
            parse(odd).unwrap_err();
        }
    }

    #[test]
    fn each_service_can_be_asked_for() {
        for service in Service::ALL {
            let request = request("label", service, 40_000).unwrap();
            assert_eq!(request.image().name(), Image::of(service).unwrap().name);
        }
    }

    #[test]
    fn kafka_is_told_its_own_address() {
        let environment = environment(Service::Kafka, 40_000);
        let address = ("KAFKA_ADVERTISED_LISTENERS".to_owned(), "PLAINTEXT://127.0.0.1:40000".to_owned());
        assert!(environment.contains(&address));
    }
}
