//! A web service whose instances share orders: one of them works on an order at a time, three exports run at a time, and
//! one instance leads.
//!
//! `cargo run -p distlock-examples --example orders -- crates/distlock-examples/examples/orders/orders.toml`

#[path = "orders/failure.rs"]
pub(crate) mod failure;
#[path = "orders/settings.rs"]
pub(crate) mod settings;
#[path = "orders/store.rs"]
pub(crate) mod store;

use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRef, Path, Query, State};
use axum::routing::get;
use axum::{Json, Router};
use distlock::{ErrorKind, Holder, Leader, Leadership, LockRequest, Locker};
use distlock_examples::{Lockable, Locked};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use self::failure::Failure;
use self::settings::Settings;
use self::store::{Order, Store, Summary};

/// How long a request waits for a lock before it is refused.
const WAIT: Duration = Duration::from_secs(2);
/// How long cancelled requests have for their responses.
const LAST_RESPONSES: Duration = Duration::from_secs(1);
/// Buckets from milliseconds to an hour.
const SECONDS: [f64; 10] = [0.001, 0.005, 0.02, 0.1, 0.5, 3.0, 10.0, 30.0, 300.0, 3600.0];

#[derive(Clone)]
pub(crate) struct App {
    pub(crate) name: Arc<str>,
    pub(crate) locker: Arc<Locker>,
    pub(crate) store: Store,
    pub(crate) metrics: PrometheusHandle,
    pub(crate) exports: u32,
    pub(crate) summary_every: Duration,
}

impl FromRef<App> for Arc<Locker> {
    fn from_ref(app: &App) -> Self {
        app.locker.clone()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let settings = Settings::load(std::env::args_os().nth(1).map(Into::into))?;
    let recorder = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?;
    let app = App {
        name: settings.name.as_str().into(),
        metrics: recorder.install_recorder()?,
        locker: Arc::new(Locker::builder().owner_per_request().from_config(&settings.locks).await?),
        store: Store::open(&settings.database)?,
        exports: settings.exports,
        summary_every: settings.summary_every(),
    };
    tokio::spawn(collect(app.metrics.clone()));
    serve(app, TcpListener::bind(settings.listen).await?, settings.grace()).await
}

pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route("/orders/{id}", get(show).post(change))
        .route("/exports", get(exporters).post(export))
        .route("/leader", get(leader))
        .route("/summary", get(summary))
        .route("/metrics", get(async |State(app): State<App>| app.metrics.render()))
        .with_state(app)
}

#[derive(Deserialize)]
struct OrderId(i64);

impl OrderId {
    fn lock_name(&self) -> String {
        format!("order:{}", self.0)
    }
}

impl Lockable for OrderId {
    fn lock(&self, locker: &Locker) -> LockRequest {
        locker.lock(self.lock_name()).wait(WAIT).group("orders")
    }
}

#[derive(Deserialize)]
struct Change {
    state: String,
    #[serde(default)]
    takes_ms: u64,
}

/// Changes an order under its lock: 423 if another request works on it. If the lock is lost, the work is dropped at its next
/// await, and the response is 503.
async fn change(
    State(app): State<App>,
    Query(change): Query<Change>,
    Locked { item: OrderId(id), guard }: Locked<OrderId>,
) -> Result<Json<Order>, Failure> {
    let token = guard.fencing_token();
    let work = async {
        charge(change.takes_ms).await;
        app.store.write(id, change.state, token).await
    };
    let order = guard.try_run(work).await?;
    if let Err(error) = guard.unlock().await {
        tracing::warn!(%error, "order written, but not unlocked");
    }
    Ok(Json(order))
}

/// Stands for what takes time, such as a payment.
async fn charge(takes_ms: u64) {
    sleep(Duration::from_millis(takes_ms)).await;
}

#[derive(Serialize)]
struct Shown {
    order: Option<Order>,
    /// The request that works on it.
    holder: Option<Holder>,
}

async fn show(State(app): State<App>, Path(id): Path<OrderId>) -> Result<Json<Shown>, Failure> {
    let lock = app.locker.inspect().get(id.lock_name()).await?;
    let holder = lock.and_then(|lock| lock.holder().cloned());
    Ok(Json(Shown { order: app.store.order(id.0).await?, holder }))
}

#[derive(Deserialize)]
struct Export {
    #[serde(default)]
    takes_ms: u64,
}

/// Exports all orders: 423 if as many exports run as may, on whatever instances.
async fn export(State(app): State<App>, Query(export): Query<Export>) -> Result<Json<Vec<Order>>, Failure> {
    let permit = app.locker.semaphore("exports", app.exports).acquire().wait(WAIT).group("exports").await?;
    let work = async {
        sleep(Duration::from_millis(export.takes_ms)).await;
        app.store.orders().await
    };
    permit.try_run(work).await.map(Json)
}

async fn exporters(State(app): State<App>) -> Result<Json<Vec<Holder>>, Failure> {
    let lock = app.locker.inspect().get("exports").await?;
    Ok(Json(lock.map(|lock| lock.holders).unwrap_or_default()))
}

async fn leader(State(app): State<App>) -> Result<Json<Option<Leader>>, Failure> {
    Ok(Json(app.locker.election("leader").leader().await?))
}

async fn summary(State(app): State<App>) -> Result<Json<Option<Summary>>, Failure> {
    app.store.summary().await.map(Json)
}

/// Campaigns, and leads whenever this instance is elected, until the locker is closed.
pub(crate) async fn lead(app: App) {
    loop {
        let leader = app.clone();
        let work = async move |leadership: &Leadership| keep_summary(&leader, leadership).await;
        match app.locker.election("leader").campaign(&*app.name).group("leader").lead(work).await {
            Err(error) if error.kind() == ErrorKind::Closed => return,
            Err(error) => tracing::warn!(%error, "campaign failed"),
            Ok(failure) => tracing::warn!(?failure, "leader resigned"),
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// Writes the summary again and again; returns when that fails.
async fn keep_summary(app: &App, leadership: &Leadership) -> Failure {
    loop {
        let token = leadership.guard().fencing_token();
        if let Err(failure) = app.store.summarize(app.name.clone(), token).await {
            return failure;
        }
        sleep(app.summary_every).await;
    }
}

/// Serves until SIGTERM. Then it resigns, accepts nothing new, and gives the requests `grace` to end.
async fn serve(app: App, listener: TcpListener, grace: Duration) -> Result<(), Box<dyn Error>> {
    let (stop_serving, stop_leading) = (terminated()?, terminated()?);
    tracing::info!("listening on {}", listener.local_addr()?);
    let leading = tokio::spawn(lead(app.clone()));
    let server = axum::serve(listener, router(app.clone())).with_graceful_shutdown(stop_serving);
    let mut served = pin!(server.into_future());
    let out_of_grace = async {
        stop_leading.await;
        leading.abort();
        sleep(grace).await;
    };
    let ended = tokio::select! {
        ended = &mut served => Some(ended),
        () = out_of_grace => None,
    };
    // Releases all locks. The work that still runs loses its lock, and its client gets 503.
    if let Err(error) = app.locker.close().await {
        tracing::warn!(%error, "some locks end with their leases");
    }
    match ended {
        Some(ended) => ended?,
        None => timeout(LAST_RESPONSES, served).await.unwrap_or(Ok(()))?,
    }
    Ok(())
}

/// Keeps the memory of the metrics small while no server reads them.
async fn collect(metrics: PrometheusHandle) {
    loop {
        sleep(Duration::from_secs(5)).await;
        metrics.run_upkeep();
    }
}

/// Returns a future that completes on SIGTERM or SIGINT, also if the signal comes before it is polled.
fn terminated() -> std::io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
