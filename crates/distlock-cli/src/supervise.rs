//! Runs a command for as long as the lock is held, and not longer.

use std::future::pending;
use std::io;
use std::process::Command;
use std::time::Duration;

use distlock::{Clock, LossReason, Moment};
use rustix::process::Signal;

use crate::child::{self, Change, Child, Outcome, Placement};
use crate::guardian::Guardian;
use crate::hold::Hold;
use crate::note::{Note, Notes};
use crate::policy::{OnLost, Policy};
use crate::signal_stream::{Delivery, FORWARDED, Signals};
use crate::terminal::Terminal;
use crate::tree;

/// How often to look for processes that the child left behind; most of them announce their end, some to others.
const LINGER_POLL: Duration = Duration::from_millis(100);

/// How often to kill again: whoever is forked while the others are killed is found by the next look.
const KILL_POLL: Duration = Duration::from_millis(10);

/// How a supervised command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// How the command itself ended.
    pub outcome: Outcome,
    /// Why the lock was lost, if it was, or why the command was ended in its name.
    pub loss: Option<LossReason>,
    /// The command died of a key of the terminal, which it had to itself: others in the wrapper's group wait for it.
    pub by_terminal: bool,
    /// The command was ended because of the loss, and nobody else had asked it to end.
    pub by_loss: bool,
}

/// Why there is no [`Ending`].
#[derive(Debug)]
pub enum Failure {
    /// The command cannot be started.
    Exec(io::Error),
    /// The kernel refused what supervision needs.
    Internal(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Internal(error)
    }
}

/// Runs `command` under `hold`. Returns once its process group is gone, and everybody below it in this session; only
/// then may the lock be released. Keeps to the main thread, which must live as long as the process.
///
/// # Errors
/// When the command cannot be started; nothing of it is left then.
///
/// # Cancel safety
/// None: dropping the future kills the command.
pub async fn supervise<H: Hold>(
    command: Command,
    policy: &Policy,
    hold: &H,
    signals: &mut Signals,
    notes: &mut Notes,
) -> Result<Ending, Failure> {
    let clock = Clock::system();
    let started = clock.now();
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(io::Error::from)?;
    let guardian = Guardian::start()?;
    // Before the command runs: we may be stopped right after.
    let guarded_until = hold.deadline().filter(|_| policy.on_lost == OnLost::Term);
    set_guardian(&guardian, guarded_until, policy, &clock)?;
    let child = match Child::spawn(command, policy.placement, signals.inherited_mask(), &guardian) {
        Ok(child) => child,
        Err(error) => {
            guardian.dismiss();
            return Err(Failure::Exec(error));
        }
    };
    notes.say(&Note::Started { pid: child.pid.as_raw_nonzero().get() });
    let supervisor = Supervisor {
        policy,
        hold,
        signals,
        notes,
        clock,
        started,
        child,
        guardian,
        terminal: Terminal::default(),
        stage: Stage::Running,
        guarded_until,
        outcome: None,
        loss: None,
        asked_to_end: false,
        by_terminal: false,
        by_loss: false,
        lingering: false,
    };
    Ok(supervisor.run().await?)
}

/// Sets the guardian's timer half a margin later than our own SIGKILL, which reaches more.
fn set_guardian(guardian: &Guardian, deadline: Option<Moment>, policy: &Policy, clock: &Clock) -> io::Result<()> {
    guardian.kill_after(deadline.map(|end| end.before(policy.margin / 2).since(clock.now())))
}

/// How far the end of the child has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// It was asked to end and is killed at this moment.
    Ending(Moment),
    /// It is being killed.
    Killing,
}

struct Supervisor<'a, H> {
    policy: &'a Policy,
    hold: &'a H,
    signals: &'a mut Signals,
    notes: &'a mut Notes,
    clock: Clock,
    started: Moment,
    child: Child,
    guardian: Guardian,
    terminal: Terminal,
    stage: Stage,
    /// The deadline that the guardian knows.
    guarded_until: Option<Moment>,
    outcome: Option<Outcome>,
    loss: Option<LossReason>,
    asked_to_end: bool,
    by_terminal: bool,
    by_loss: bool,
    lingering: bool,
}

impl<H: Hold> Supervisor<'_, H> {
    async fn run(mut self) -> io::Result<Ending> {
        loop {
            self.reap()?;
            if let Some(outcome) = self.outcome
                && self.everybody_is_gone()
            {
                self.terminal.take_back(self.child.pid);
                self.learn_of_late_loss().await;
                self.guardian.dismiss();
                let by_loss = self.by_loss && !self.asked_to_end;
                return Ok(Ending { outcome, loss: self.loss, by_terminal: self.by_terminal, by_loss });
            }
            self.tell_guardian()?;
            self.look_at_clock();
            self.wait().await?;
        }
    }

    /// A loss that came together with the end, or while we were stopped, counts as much as any other.
    async fn learn_of_late_loss(&mut self) {
        if self.loss.is_none() && self.policy.on_lost != OnLost::Ignore && self.hold.is_lost() {
            let reason = self.hold.lost().await;
            self.notes.say(&Note::Lost { reason: reason.clone() });
            self.loss = Some(reason);
        }
    }

    /// Waits for a signal, a loss, or the next moment at which there is something to do.
    async fn wait(&mut self) -> io::Result<()> {
        let wake = self.next_wake();
        let watches_loss = self.loss.is_none() && self.policy.on_lost != OnLost::Ignore;
        let moment = async {
            match wake {
                Moment::NEVER => pending().await,
                wake => self.clock.sleep_until(wake).await,
            }
        };
        tokio::select! {
            biased;
            delivery = self.signals.next() => self.on_signal(delivery?)?,
            reason = self.hold.lost(), if watches_loss => self.on_loss(reason),
            () = moment => {}
        }
        Ok(())
    }

    /// Sees to everybody that ended or was stopped. Orphans that fell to us are buried without a word.
    fn reap(&mut self) -> io::Result<()> {
        while let Some((pid, change)) = child::next_change()? {
            match change {
                Change::Ended(outcome) if pid == self.child.pid => self.on_end(outcome),
                Change::Stopped(signal) if pid == self.child.pid => self.on_stop(signal)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn on_end(&mut self, outcome: Outcome) {
        let key = [Signal::INT, Signal::QUIT].iter().any(|signal| outcome == Outcome::Killed(signal.as_raw()));
        self.by_terminal = key && self.terminal.is_lent() && !self.asked_to_end && self.stage == Stage::Running;
        self.outcome = Some(outcome);
        self.notes.say(&Note::Ended { outcome });
        // Then it was the guardian who killed it, by what it knew of the lease: we were stopped.
        let guardian_acts = self.guarded_until.map_or(Moment::NEVER, |end| end.before(self.policy.margin / 2));
        if self.loss.is_none() && self.clock.now() >= guardian_acts {
            self.loss = Some(LossReason::Expired);
            self.by_loss = true;
            self.notes.say(&Note::Lost { reason: LossReason::Expired });
        }
    }

    fn everybody_is_gone(&mut self) -> bool {
        let guardian = self.guardian.pid();
        let left = match self.stage {
            Stage::Killing => tree::descendants(guardian),
            _ => tree::descendants_in_session(guardian),
        };
        let gone = left.is_empty() && self.child.group_is_gone();
        if !gone && !self.lingering {
            self.lingering = true;
            self.notes.say(&Note::Lingering { processes: left.len().max(1) });
        }
        gone
    }

    /// Keeps the guardian's timer ahead of the lease, or behind it when the lease is not renewed.
    fn tell_guardian(&mut self) -> io::Result<()> {
        let deadline = self.hold.deadline().filter(|_| self.policy.on_lost == OnLost::Term);
        if deadline != self.guarded_until {
            set_guardian(&self.guardian, deadline, self.policy, &self.clock)?;
            self.guarded_until = deadline;
        }
        Ok(())
    }

    /// Does what is due by the clock.
    fn look_at_clock(&mut self) {
        let now = self.clock.now();
        match self.stage {
            Stage::Running => {
                if now >= self.end_of_permission() {
                    let limit = self.policy.at_most.unwrap_or_default();
                    self.notes.say(&Note::HeldTooLong { limit });
                    self.loss.get_or_insert(LossReason::MaxHold);
                    self.ask_to_end();
                } else if now >= self.point_of_risk() {
                    self.on_risk(now);
                    self.ask_to_end();
                }
            }
            Stage::Ending(kill_at) => {
                if self.loss.is_none() && now >= self.point_of_risk() {
                    self.on_risk(now);
                }
                // A lease that ends sooner than the grace does not wait for it.
                if now >= kill_at.min(self.last_moment()) {
                    self.kill();
                }
            }
            Stage::Killing => self.kill_everybody(),
        }
    }

    fn on_risk(&mut self, now: Moment) {
        let left = self.hold.deadline().map_or(Duration::ZERO, |end| end.since(now));
        self.notes.say(&Note::AtRisk { left });
        self.loss.get_or_insert(LossReason::Expired);
    }

    fn next_wake(&self) -> Moment {
        let now = self.clock.now();
        let due = match self.stage {
            Stage::Running => self.end_of_permission().min(self.point_of_risk()),
            Stage::Ending(kill_at) if self.loss.is_some() => kill_at.min(self.last_moment()),
            Stage::Ending(kill_at) => kill_at.min(self.point_of_risk()),
            Stage::Killing => now.after(KILL_POLL),
        };
        let linger = if self.outcome.is_some() { now.after(LINGER_POLL) } else { Moment::NEVER };
        due.min(linger).min(self.next_look_at_lease(now))
    }

    /// Often enough that the guardian hears of a renewal long before the end of the lease that it knows.
    fn next_look_at_lease(&self, now: Moment) -> Moment {
        match self.guarded_until {
            Some(deadline) => now.after((deadline.since(now) / 4).max(LINGER_POLL)),
            None => Moment::NEVER,
        }
    }

    /// When `--at-most` is over.
    fn end_of_permission(&self) -> Moment {
        self.policy.at_most.map_or(Moment::NEVER, |limit| self.started.after(limit))
    }

    /// When the child must be asked to end for SIGKILL to come before the lease's end. A lease that is renewed never
    /// gets there.
    fn point_of_risk(&self) -> Moment {
        match self.last_moment() {
            Moment::NEVER => Moment::NEVER,
            last => last.before(self.policy.grace),
        }
    }

    /// When the child must be killed for the kernel to clear it up before the lease's end.
    fn last_moment(&self) -> Moment {
        match self.hold.deadline() {
            Some(deadline) if self.policy.on_lost == OnLost::Term => deadline.before(self.policy.margin),
            _ => Moment::NEVER,
        }
    }

    fn on_loss(&mut self, reason: LossReason) {
        self.notes.say(&Note::Lost { reason: reason.clone() });
        self.loss = Some(reason);
        match (self.policy.on_lost, self.stage) {
            (OnLost::Term, Stage::Running) => self.ask_to_end(),
            // Asked by a forwarded signal, perhaps without a limit: now there is one.
            (OnLost::Term, Stage::Ending(kill_at)) => {
                self.stage = Stage::Ending(kill_at.min(self.clock.now().after(self.policy.grace)));
            }
            _ => {}
        }
    }

    /// Sends the first signal; SIGKILL follows after the grace, and before the lease's end if there is one.
    fn ask_to_end(&mut self) {
        // One that has ended by itself is not asked, only what it left behind.
        self.by_loss = self.outcome.is_none();
        let now = self.clock.now();
        let kill_at = now.after(self.policy.grace).min(self.last_moment());
        if kill_at <= now {
            return self.kill();
        }
        self.stage = Stage::Ending(kill_at);
        self.child.signal(self.policy.signal);
        // A stopped process does not see the signal.
        self.child.signal(Signal::CONT);
        self.notes.say(&Note::Stopping { signal: self.policy.signal.as_raw(), grace: kill_at.since(now) });
    }

    fn kill(&mut self) {
        self.stage = Stage::Killing;
        self.notes.say(&Note::Killing);
        self.kill_everybody();
    }

    fn kill_everybody(&self) {
        self.child.signal(Signal::KILL);
        for pid in tree::descendants(self.guardian.pid()) {
            // It may have ended since it was listed.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }

    fn on_signal(&mut self, delivery: Delivery) -> io::Result<()> {
        match delivery.signal {
            Signal::CONT => self.on_continue(),
            Signal::TSTP => self.on_stop_request(delivery)?,
            signal if FORWARDED.contains(&signal) => self.forward(delivery),
            // SIGCHLD: the next turn reaps.
            _ => {}
        }
        Ok(())
    }

    fn forward(&mut self, delivery: Delivery) {
        let Delivery { signal, .. } = delivery;
        let told_by_terminal = signal == Signal::HUP && self.terminal.is_hung_up();
        if told_by_terminal || self.child_got_it_too(delivery) {
            return;
        }
        if signal != Signal::INT && signal != Signal::TERM {
            return self.child.signal(signal);
        }
        if self.asked_to_end {
            if self.stage != Stage::Killing {
                self.kill();
            }
            return;
        }
        self.asked_to_end = true;
        self.child.signal(signal);
        if let (Some(patience), Stage::Running) = (self.policy.patience, self.stage) {
            self.stage = Stage::Ending(self.clock.now().after(patience));
        }
    }

    /// Keys of the terminal reach the whole foreground group, and so the child if it is in ours.
    fn child_got_it_too(&self, delivery: Delivery) -> bool {
        delivery.from_kernel && self.child.placement == Placement::Foreground
    }

    /// The child was stopped, perhaps only because it wants the terminal.
    fn on_stop(&mut self, signal: i32) -> io::Result<()> {
        let wants_terminal = [Signal::TTIN, Signal::TTOU].into_iter().find(|it| it.as_raw() == signal);
        match wants_terminal {
            Some(_) if self.child.placement == Placement::OwnGroup && self.terminal.lend(self.child.pid) => {
                self.child.signal(Signal::CONT);
                Ok(())
            }
            Some(signal) => self.stop_along(signal),
            None if signal == Signal::TSTP.as_raw() && self.terminal.is_lent() => self.stop_along(Signal::TSTP),
            // Stopped by a debugger or a person: the lock is kept for it.
            None => Ok(()),
        }
    }

    /// Somebody wants to stop us: the child goes first.
    fn on_stop_request(&mut self, delivery: Delivery) -> io::Result<()> {
        if !self.child_got_it_too(delivery) {
            // Not TSTP: it must not run on, unwatched, because it ignores that.
            self.child.signal(Signal::STOP);
        }
        self.stop_along(Signal::TSTP)
    }

    /// Stops this process with its child, so that the shell sees a stopped job. SIGCONT then comes as a signal.
    fn stop_along(&mut self, signal: Signal) -> io::Result<()> {
        let had_terminal = self.terminal.take_back(self.child.pid);
        if !self.signals.stop(signal)? {
            // Nobody could continue us, so the kernel did not stop us, nor would it have stopped the child; from a
            // terminal that nobody will give it, the child hears what the kernel tells orphaned groups.
            if signal != Signal::TSTP {
                self.child.signal(Signal::HUP);
            }
            self.on_continue();
        }
        if had_terminal && self.stage != Stage::Killing {
            self.terminal.lend(self.child.pid);
        }
        Ok(())
    }

    /// We were continued; the child goes on only if the lock is still held.
    fn on_continue(&mut self) {
        if self.policy.on_lost == OnLost::Term && self.stage != Stage::Killing && self.hold.is_lost() {
            // Why it was lost is heard in the next turns.
            return self.kill();
        }
        self.child.signal(Signal::CONT);
    }
}
