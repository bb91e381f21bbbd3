//! The process in the background that holds a lock for `acquire`.
//!
//! It ends when it is asked to release, by a signal, when the lock is lost, and when the lease has passed since the last
//! renewal: a script that died without a release blocks the others for no longer than that.

use std::io;
use std::time::Duration;

use distlock::{Clock, Error, ErrorKind, LockGuard, MAX_TTL, MIN_TTL, Moment};
use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::acquire::{Refusal, Wanted, interruption, wait_for};
use crate::commands::block_on;
use crate::control_request::{Action, Answer, Request};
use crate::control_socket::{ControlSocket, answer};
use crate::engine::{Engine, Settings};
use crate::exit::{Exit, ExitCode};
use crate::flags::Acquire;
use crate::hold_token::HoldToken;
use crate::plan::{self, Wait};
use crate::report::{Held, Report};
use crate::signal_stream::Signals;
use crate::sys;

/// The name under which `acquire` starts it; the words after it are `acquire`'s own.
pub(super) const COMMAND: &str = "acquire-holder";

pub(super) fn main(flags: &Acquire) -> Exit {
    let caller = match detach() {
        Ok(caller) => caller,
        // Nobody can be told.
        Err(_) => return ExitCode::Internal.into(),
    };
    block_on(async {
        match Caller::new(caller) {
            Ok(caller) => hold(flags, caller).await,
            Err(_) => ExitCode::Internal.into(),
        }
    })
}

/// Leaves the caller's session, terminal and files. Gives back the way to the caller, which was our stdin.
fn detach() -> io::Result<std::os::unix::net::UnixStream> {
    sys::close_inherited();
    let _ = rustix::thread::set_name(c"distlock-holder");
    // It fails only when we lead a group already, as one who was started by hand may.
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

async fn take(flags: &Acquire, caller: &mut Caller) -> Result<Holder, Refusal> {
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
            () = caller.gone() => nobody_left(),
        }
    };
    let (guard, waited) = wait_for(&engine, &wanted, stop).await?;
    // The directory in which a script was started may be unmounted while the lock is held.
    let _ = rustix::process::chdir("/");
    let token = HoldToken::new(guard.fencing_token());
    let clock = Clock::system();
    let ends = clock.now().after(ttl);
    match ControlSocket::listen(&token) {
        Ok(socket) => Ok(Holder { guard, engine, token, socket, signals, waited, ttl, ends, clock }),
        Err(error) => {
            let _ = guard.unlock().await;
            Err(refusal(error))
        }
    }
}

fn nobody_left() -> Refusal {
    Refusal { exit: ExitCode::NotAcquired.into(), message: None }
}

/// The `acquire` that started us.
struct Caller(UnixStream);

impl Caller {
    fn new(stream: std::os::unix::net::UnixStream) -> io::Result<Caller> {
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream).map(Caller)
    }

    async fn report(&mut self, report: &Report) {
        // Who is gone is not told.
        let _ = self.0.write_all(report.encode().as_bytes()).await;
    }

    /// Whether it has passed the token on; `false` when it is gone without.
    async fn confirms(&mut self) -> bool {
        self.0.read_u8().await.is_ok()
    }

    /// Resolves when it is gone. It says nothing before it has our report.
    async fn gone(&mut self) {
        let _ = self.0.read_u8().await;
    }
}

/// Why a hold ends.
enum End {
    /// Somebody with the token asked for it, and waits for the answer.
    Asked(UnixStream),
    /// The lease, a signal, or the socket failed.
    Ours,
    /// The lock is not ours any more.
    Lost,
}

/// A lock that is held, and everything that can end it.
struct Holder {
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

impl Holder {
    /// Tells the caller, and keeps the lock only if the caller passes the token on.
    async fn present(self, caller: &mut Caller) -> Result<Holder, Refusal> {
        let report = Report::Held(Held {
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
            // A caller that is stopped does not keep the lock for longer than its lease.
            () = self.clock.sleep_until(self.ends) => false,
        };
        if confirmed {
            return Ok(self);
        }
        self.finish(End::Ours).await;
        Err(nobody_left())
    }

    async fn serve(mut self) -> Exit {
        let end = self.until_the_end().await;
        self.finish(end).await
    }

    async fn until_the_end(&mut self) -> End {
        loop {
            // In this order: who was stopped past the lease's end must not renew it afterwards.
            let asked = tokio::select! {
                biased;
                _ = self.guard.lost() => return End::Lost,
                () = self.clock.sleep_until(self.ends) => return End::Ours,
                _ = interruption(&mut self.signals) => return End::Ours,
                asked = self.socket.next() => asked,
            };
            let Ok((request, stream)) = asked else { return End::Ours };
            if request.token != self.token || request.name != self.guard.key().as_str() {
                answer(stream, &Answer::NotHeld("the token is not of a hold of this lock".into())).await;
                continue;
            }
            match request {
                Request { action: Action::Release, .. } => return End::Asked(stream),
                Request { action: Action::Renew(ttl), .. } => answer(stream, &self.renew(ttl).await).await,
            }
        }
    }

    /// Starts the lease anew, if the engine says that the lock is still ours.
    async fn renew(&mut self, ttl: Option<Duration>) -> Answer {
        let ttl = ttl.unwrap_or(self.ttl).clamp(MIN_TTL, MAX_TTL);
        let asked = self.clock.now();
        match self.guard.extend(ttl).await {
            Ok(()) => {
                (self.ttl, self.ends) = (ttl, asked.after(ttl));
                Answer::Done(ttl)
            }
            Err(error) => Answer::from_error(&error),
        }
    }

    /// Releases the lock and takes the socket away, then answers: whoever is told finds nothing left.
    async fn finish(self, end: End) -> Exit {
        let Holder { guard, engine, socket, .. } = self;
        let released = guard.unlock().await;
        drop(socket);
        let unconfirmed = released.as_ref().is_err_and(|error| error.kind() != ErrorKind::Lost);
        let exit = match end {
            End::Asked(stream) => {
                let said = released.map_or_else(|error| Answer::from_error(&error), |()| Answer::Done(Duration::ZERO));
                answer(stream, &said).await;
                Exit::SUCCESS
            }
            End::Ours => Exit::SUCCESS,
            End::Lost => ExitCode::Lost.into(),
        };
        if unconfirmed {
            // Goes on releasing for a while; the engine's lease does the rest.
            let _ = engine.locker.close().await;
        }
        engine.finish().await;
        exit
    }
}
