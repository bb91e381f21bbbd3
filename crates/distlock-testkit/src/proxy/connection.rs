//! A client's connection and its connection to the server.

use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use tokio::net::TcpStream;

use super::flow::Direction;
use super::pump::Pump;
use super::shared::Shared;

/// Serves one client until both sides have finished or the connection is cut.
pub(super) async fn serve(client: TcpStream, number: u64, shared: Arc<Shared>) {
    let client = Arc::new(client);
    let server = tokio::select! {
        server = connect(&shared) => server,
        () = until_cut(number, &shared) => None,
    };
    match server.map(Arc::new) {
        None => reset(&client),
        Some(server) => {
            let requests = Pump::new(Direction::Requests, number, &client, &server, &shared);
            let replies = Pump::new(Direction::Replies, number, &server, &client, &shared);
            tokio::join!(requests.run(), replies.run());
            // A cut between machines is a reset; a side that ended normally has already sent its end.
            if shared.act(|state| number < state.cut_below) {
                reset(&client);
                reset(&server);
            }
        }
    }
    // Closed before a waiting test thread is notified.
    drop(client);
    shared.act(|state| state.open.remove(&number));
}

async fn connect(shared: &Shared) -> Option<TcpStream> {
    let target = shared.act(|state| state.target);
    let server = TcpStream::connect(target).await.ok()?;
    server.set_nodelay(true).ok()?;
    Some(server)
}

async fn until_cut(number: u64, shared: &Shared) {
    let mut rules = shared.rules();
    while !shared.act(|state| number < state.cut_below) {
        if rules.changed().await.is_err() {
            return;
        }
    }
}

/// Makes closing the socket send a reset instead of an orderly end.
fn reset(stream: &TcpStream) {
    let _ = set_socket_linger(stream, Some(Duration::ZERO));
}
