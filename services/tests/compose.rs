//! `compose.yaml` starts the same images as the tests do.

use einmal_services::Service;
use einmal_services::images::{IMAGES, Image, KAFKA_SETTINGS};

const COMPOSE: &str = include_str!("../../compose.yaml");

/// The lines of one service. The file is ours, and simple: no reader of YAML is needed.
fn section(service: Service) -> Vec<&'static str> {
    let head = format!("  {service}:");
    COMPOSE
        .lines()
        .skip_while(|line| *line != head)
        .skip(1)
        .take_while(|line| line.is_empty() || line.starts_with("    "))
        .collect()
}

#[test]
fn the_images_are_ours() {
    for service in Service::ALL {
        let image = Image::of(service).unwrap();
        let wanted = format!("    image: {}", image.reference());
        assert!(section(service).contains(&wanted.as_str()), "compose.yaml: {service} lacks `{wanted}`");
    }
    let images = COMPOSE.lines().filter(|line| line.trim_start().starts_with("image:")).count();
    assert_eq!(images, IMAGES.len());
}

#[test]
fn each_has_a_health_check_and_a_port_on_loopback_only() {
    for service in Service::ALL {
        let port = Image::of(service).unwrap().port;
        let lines = section(service);
        assert!(lines.contains(&"    healthcheck:"), "{service}");
        let ports: Vec<_> = lines.iter().filter(|line| line.trim_start().starts_with("- \"")).collect();
        assert_eq!(ports, [&&*format!("      - \"127.0.0.1:{port}:{port}\"")], "{service}");
    }
}

#[test]
fn kafka_has_the_settings_of_the_tests() {
    let lines = section(Service::Kafka);
    for (name, value) in KAFKA_SETTINGS {
        let variable = name.replace('.', "_").to_uppercase();
        let wanted = format!("      KAFKA_{variable}: \"{value}\"");
        assert!(lines.contains(&wanted.as_str()), "compose.yaml lacks `{wanted}`");
    }
}

#[test]
fn the_addresses_in_its_head_are_right() {
    for service in Service::ALL {
        let port = Image::of(service).unwrap().port;
        let line = format!("#   export {}={}", service.variable(), service.address_at("127.0.0.1", port));
        assert!(COMPOSE.lines().any(|found| found == line), "compose.yaml lacks `{line}`");
    }
}
