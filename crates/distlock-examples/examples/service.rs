//! A web service that charges an invoice in one request at a time, over all instances. docs/start-rust.md explains it.
//!
//! `LISTEN=127.0.0.1:8080 cargo run -p distlock-examples --example service`

use std::env;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use distlock::{Error, ErrorKind, FencingToken, Locker};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::var("DISTLOCK_URL").unwrap_or_else(|_| "mem://".into());
    let locker = Arc::new(Locker::connect(&url).await?);
    let app = Router::new().route("/invoices/{id}/charge", post(charge)).with_state(locker.clone());
    let listener = TcpListener::bind(env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:8080".into())).await?;
    let mut terminate = signal(SignalKind::terminate())?;
    println!("listening on {}", listener.local_addr()?);
    // On SIGTERM: accept nothing new, finish the requests that run, then release every lock that is left.
    let stop = async move {
        terminate.recv().await;
    };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    if let Err(error) = locker.close().await {
        eprintln!("some locks last until their leases end: {error}");
    }
    Ok(())
}

async fn charge(State(locker): State<Arc<Locker>>, Path(id): Path<u64>) -> Result<String, StatusCode> {
    // Each request is an owner of its own, so two requests of one instance exclude each other too.
    let request = locker.lock(format!("invoice:{id}")).as_new_owner().wait(Duration::from_secs(2));
    let guard = request.await.map_err(|error| status(&error))?;
    // If the lock is lost, `run` drops the payment at its next await and returns an error.
    let receipt = guard.run(pay(id, guard.fencing_token())).await.map_err(|error| status(&error))?;
    // The invoice is charged. A release whose reply is lost continues in the background.
    if let Err(error) = guard.unlock().await {
        eprintln!("invoice {id} is charged, but its lock may last until its lease ends: {error}");
    }
    Ok(receipt)
}

/// Stands for the real work. It passes the token on, so that the database can refuse a late write.
async fn pay(id: u64, token: FencingToken) -> String {
    tokio::time::sleep(Duration::from_millis(100)).await;
    format!("invoice {id} charged with token {token}\n")
}

fn status(error: &Error) -> StatusCode {
    eprintln!("{error:?}"); // with its cause
    match error.kind() {
        ErrorKind::Timeout => StatusCode::LOCKED, // another request holds the lock
        ErrorKind::InvalidInput => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE, // the lock was lost, or the engine cannot be reached
    }
}
