//! The metrics of a program that locks, as Prometheus reads them.
//!
//! Your own program would let the exporter listen (`with_http_listener`) instead of printing.

use distlock::Locker;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

/// Buckets from milliseconds to an hour; deploy/prometheus/rules.yml expects some up to an hour.
const SECONDS: [f64; 10] = [0.001, 0.005, 0.02, 0.1, 0.5, 3.0, 10.0, 30.0, 300.0, 3600.0];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let recorder = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?;
    let exporter = recorder.install_recorder()?;

    let locker = Locker::connect("mem://").await?;
    let guard = locker.lock("invoice:42").group("billing").await?;
    let held = exporter.render();
    guard.unlock().await?;

    for line in held.lines().filter(|line| line.starts_with("distlock_active")) {
        println!("{line}");
    }
    let ended = exporter.render();
    for line in ended.lines().filter(|line| line.starts_with("distlock_hold_duration_seconds_count")) {
        println!("{line}");
    }
    Ok(())
}
