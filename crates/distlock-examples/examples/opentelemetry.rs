//! The spans of a program that locks, as OpenTelemetry exports them.
//!
//! Your own program would use the exporter of its collector instead of this printer.

use distlock::Locker;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

#[derive(Debug)]
struct Printer;

impl SpanExporter for Printer {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        for span in batch {
            let name = span.attributes.iter().find(|pair| pair.key.as_str() == "lock.name");
            println!("{}: {}", span.name, name.map(|pair| pair.value.as_str()).unwrap_or_default());
        }
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> distlock::Result<()> {
    let provider = SdkTracerProvider::builder().with_simple_exporter(Printer).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("distlock"));
    tracing_subscriber::registry().with(layer).init();

    let locker = Locker::connect("mem://").await?;
    let guard = locker.lock("invoice:42").await?;
    guard.run(async { /* charge it */ }).await?;
    guard.unlock().await
}
