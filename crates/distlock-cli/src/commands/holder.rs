//! The background process that holds a lock for `acquire`.
//!
//! It ends on a release request, on a signal, when the lock is lost, and when a whole lease has passed since the last
//! renewal: a script that died without a release blocks the waiters no longer than that.

use std::io;
use std::time::Duration;

use distlock::{Clock, Error, ErrorKind, LockGuard, MAX_TTL, MIN_TTL, Moment};
use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::acquire::{Refusal, Wanted, interruption, wait_for};
use crate::commands::block_on;
use crate::control_request::{ControlAction, ControlAnswer, ControlRequest};
use crate::control_socket::{ControlSocket, answer};
use crate::engine::{Engine, Settings};
use crate::exit::{Exit, ExitCode};
use crate::flags::Acquire;
use crate::hold_token::HoldToken;
use crate::plan::{self, Wait};
use crate::report::{HeldReport, Report};
use crate::signal_stream::Signals;
use crate::sys;

/// The internal command that `acquire` starts; the arguments after it are those of `acquire`.
pub(super) const COMMAND: &str = "acquire-holder";

pub(super) fn main(flags: &Acquire) -> Exit {
    let caller = match detach() {
        Ok(caller) => caller,
        // The caller cannot be reached.
        Err(_) => return ExitCode::Internal.into(),
    };
    block_on(async {
        match Caller::new(caller) {
            Ok(caller) => hold(flags, caller).await,
            Err(_) => ExitCode::Internal.into(),
        }
    })
}

/// Leaves the caller's session, terminal and files. Returns the stream to the caller, which was stdin.
fn detach() -> io::Result<std::os::unix::net::UnixStream> {
    sys::close_inherited();
    let _ = rustix::thread::set_name(c"distlock-holder");
    // Fails only for a group leader, which a holder started by hand may be.
    let _ = rustix::process::setsid();
    let caller = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let nowhere = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&nowhere)?;
    Ok(caller.into())
}

async fn hold(flags: &Acquire, mut caller: Caller) -> Exit {
    let refusal = match take(flags, &mut caller).await {
        Ok(held) => match held.present(&mut caller).await {
            Ok(held) => {
                drop(caller);
                return held.serve().await;
            }
            Err(refusal) => refusal,
        },
        Err(refusal) => refusal,
    };
    let exit = refusal.exit;
    caller.report(&Report::Refused(refusal)).await;
    exit
}

async fn take(flags: &Acquire, caller: &mut Caller) -> Result<BackgroundHolder, Refusal> {
    let refusal = |error: Error| Refusal::new(&error, &flags.lock);
    let key =
        plan::key(&flags.name).map_err(|problem| Refusal { exit: ExitCode::Usage.into(), message: Some(problem) })?;
    let settings = Settings::read(&flags.engine).map_err(refusal)?;
    let mut signals = Signals::take_over()
        .map_err(|error| refusal(Error::new(ErrorKind::Backend, format!("cannot wait for signals: {error}"))))?;
    let ttl = plan::ttl(flags.lock.ttl, settings.config.default_ttl);
    let engine = settings.open().await.map_err(refusal)?;
    let wait = Wait::from(&flags.lock);
    let wanted = Wanted { key: &key, ttl, wait, flags: &flags.lock, purpose: "distlock acquire" };
    let stop = async {
        tokio::select! {
            refusal = interruption(&mut signals) => refusal,
            () = caller.gone() => caller_gone(),
        }
    };
    let (guard, waited) = wait_for(&engine, &wanted, stop).await?;
    // The directory of the script may be unmounted while the lock is held.
    let _ = rustix::process::chdir("/");
    let token = HoldToken::new(guard.fencing_token());
    let clock = Clock::system();
    let ends = clock.now().after(ttl);
    match ControlSocket::listen(&token) {
        Ok(socket) => Ok(BackgroundHolder { guard, engine, token, socket, signals, waited, ttl, ends, clock }),
        Err(error) => {
            let _ = guard.unlock().await;
            Err(refusal(error))
        }
    }
}

fn caller_gone() -> Refusal {
    Refusal { exit: ExitCode::NotAcquired.into(), message: None }
}

/// The stream to the `acquire` that started this process.
struct Caller(UnixStream);

impl Caller {
    fn new(stream: std::os::unix::net::UnixStream) -> io::Result<Caller> {
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream).map(Caller)
    }

    async fn report(&mut self, report: &Report) {
        // The caller may be gone.
        let _ = self.0.write_all(report.encode().as_bytes()).await;
    }

    /// Whether the caller has printed the token; `false` when it is gone.
    async fn confirms(&mut self) -> bool {
        self.0.read_u8().await.is_ok()
    }

    /// Resolves when the caller is gone. The caller sends nothing before it has the report.
    async fn gone(&mut self) {
        let _ = self.0.read_u8().await;
    }
}

/// Why a hold ends.
enum HoldEnd {
    /// A client with the token requested the release and waits for the answer.
    Requested(UnixStream),
    /// The lease is over, a signal came, or the socket failed.
    Local,
    /// The lock is lost.
    Lost,
}

/// The hold, and everything that can end it.
struct BackgroundHolder {
    guard: LockGuard,
    engine: Engine,
    token: HoldToken,
    socket: ControlSocket,
    signals: Signals,
    waited: Duration,
    ttl: Duration,
    /// The end of the caller's lease.
    ends: Moment,
    clock: Clock,
}

impl BackgroundHolder {
    /// Reports the hold to the caller, and keeps the lock only if the caller confirms that it printed the token.
    async fn present(self, caller: &mut Caller) -> Result<BackgroundHolder, Refusal> {
        let report = Report::Held(HeldReport {
            token: self.token,
            owner: self.guard.owner().to_string(),
            engine: self.engine.name.clone(),
            slot: self.guard.slot(),
            waited: self.waited,
            ttl: self.ttl,
        });
        caller.report(&report).await;
        let confirmed = tokio::select! {
            confirmed = caller.confirms() => confirmed,
            // A stopped caller does not keep the lock longer than its lease.
            () = self.clock.sleep_until(self.ends) => false,
        };
        if confirmed {
            return Ok(self);
        }
        self.finish(HoldEnd::Local).await;
        Err(caller_gone())
    }

    async fn serve(mut self) -> Exit {
        let end = self.wait_for_end().await;
        self.finish(end).await
    }

    async fn wait_for_end(&mut self) -> HoldEnd {
        loop {
            // In this order: a holder that was stopped past the lease's end must not renew afterwards.
            let asked = tokio::select! {
                biased;
                _ = self.guard.lost() => return HoldEnd::Lost,
                () = self.clock.sleep_until(self.ends) => return HoldEnd::Local,
                _ = interruption(&mut self.signals) => return HoldEnd::Local,
                asked = self.socket.next() => asked,
            };
            let Ok((request, stream)) = asked else { return HoldEnd::Local };
            if request.token != self.token || request.name != self.guard.key().as_str() {
                answer(stream, &ControlAnswer::NotHeld("the token is not of a hold of this lock".into())).await;
                continue;
            }
            match request {
                ControlRequest { action: ControlAction::Release, .. } => return HoldEnd::Requested(stream),
                ControlRequest { action: ControlAction::Renew(ttl), .. } => {
                    answer(stream, &self.renew(ttl).await).await;
                }
            }
        }
    }

    /// Starts a new lease, if the engine confirms that the lock is still held.
    async fn renew(&mut self, ttl: Option<Duration>) -> ControlAnswer {
        let ttl = ttl.unwrap_or(self.ttl).clamp(MIN_TTL, MAX_TTL);
        let asked = self.clock.now();
        match self.guard.extend(ttl).await {
            Ok(()) => {
                (self.ttl, self.ends) = (ttl, asked.after(ttl));
                ControlAnswer::Done(ttl)
            }
            Err(error) => ControlAnswer::from_error(&error),
        }
    }

    /// Releases the lock and removes the socket before it answers: a client with an answer finds neither.
    async fn finish(self, end: HoldEnd) -> Exit {
        let BackgroundHolder { guard, engine, socket, .. } = self;
        let released = guard.unlock().await;
        drop(socket);
        let unconfirmed = released.as_ref().is_err_and(|error| error.kind() != ErrorKind::Lost);
        let exit = match end {
            HoldEnd::Requested(stream) => {
                let said = released
                    .map_or_else(|error| ControlAnswer::from_error(&error), |()| ControlAnswer::Done(Duration::ZERO));
                answer(stream, &said).await;
                Exit::SUCCESS
            }
            HoldEnd::Local => Exit::SUCCESS,
            HoldEnd::Lost => ExitCode::Lost.into(),
        };
        if unconfirmed {
            // `close` retries the release for a while; then the engine's lease ends the hold.
            let _ = engine.locker.close().await;
        }
        engine.finish().await;
        exit
    }
}
