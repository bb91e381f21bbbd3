//! Runs a command for as long as the lock is held, and not longer.

use std::future::pending;
use std::io;
use std::process::Command;
use std::time::Duration;

use distlock::{Clock, LossReason, Moment};
use rustix::process::{Pid, Signal};

use crate::child::{self, Child, Outcome, Placement};
use crate::guardian::{Charge, Event, Guardian, Rest};
use crate::hold::Hold;
use crate::note::{Note, Notes};
use crate::policy::{OnLost, Policy};
use crate::signal_stream::{Delivery, FORWARDED, Signals};
use crate::terminal::Terminal;
use crate::tree::{self, Reach};

/// How often to look for processes that the child left behind when no guardian does.
const LINGER_POLL: Duration = Duration::from_millis(100);

/// How often to continue the guardian, should others have stopped it: it tells of the command's end.
const WAKE_POLL: Duration = Duration::from_secs(1);

/// How often to kill again: what is forked while the others are killed is found by the next look.
const KILL_POLL: Duration = Duration::from_millis(10);

/// How long to wait for the end of what a guardian left that was killed before its first report.
const ORPHAN_LIMIT: Duration = Duration::from_secs(10);

/// A sender that repeats INT or TERM within this time means one: timeout(1) sends it to the process and to its group.
const REPEAT: Duration = Duration::from_secs(1);

/// How a supervised command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// How the command itself ended; `None` when it goes on, out of reach, and the lock is lost.
    pub outcome: Option<Outcome>,
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

/// Runs `command` under `hold`. Returns once its process group is gone, and everything below it in this session; only
/// then may the lock be released. What may not be killed, because it became another user, is waited for as long as the
/// lock is held. Keeps to the main thread, which must live as long as the process.
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
    // Should the guardian be killed, then what is below it comes here.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(io::Error::from)?;
    let guarded_until = hold.deadline().filter(|_| policy.on_lost == OnLost::Term);
    // Where no lease ends under them, daemons outlive a wrapper that was killed.
    let reach = if guarded_until.is_some() { Reach::Everything } else { Reach::Session };
    let charge = Charge { command, placement: policy.placement, mask: signals.inherited_mask(), reach };
    let guardian = Guardian::start(charge, time_to_kill(guarded_until, policy, &clock))?;
    let mut events = loop {
        tokio::select! {
            events = guardian.next() => break events?.into_iter().flatten(),
            () = clock.sleep_until(clock.now().after(WAKE_POLL)) => guardian.wake(),
        }
    };
    let pid = match events.next() {
        Some(Event::Started(pid)) => pid,
        Some(Event::Refused(error)) => {
            guardian.dismiss();
            return Err(Failure::Exec(io::Error::from_raw_os_error(error)));
        }
        _ => {
            kill_orphans(&clock).await?;
            return Err(Failure::Internal(io::Error::other("the guardian has ended")));
        }
    };
    let child = Child { pid, placement: policy.placement, is_reaped: false };
    notes.say(&Note::Started { pid: child.pid.as_raw_nonzero().get() });
    let mut supervisor = Supervisor {
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
        guardian_is_gone: false,
        wake_at: started.after(WAKE_POLL),
        rest: Rest::Unknown,
        outcome: None,
        loss: None,
        request: None,
        refused: Vec::new(),
        refused_told: Vec::new(),
        late: Vec::new(),
        by_terminal: false,
        by_loss: false,
        lingering: false,
    };
    supervisor.on_events(Some(events.collect()))?;
    Ok(supervisor.run().await?)
}

/// Kills what a guardian that was killed before its first report has started in this session, and waits for its end.
async fn kill_orphans(clock: &Clock) -> io::Result<()> {
    let (me, until) = (rustix::process::getpid(), clock.now().after(ORPHAN_LIMIT));
    loop {
        let refused = tree::kill(me, Reach::Session);
        while child::next_ended()?.is_some() {}
        if tree::is_clear(me, Reach::Session, &refused) || clock.now() >= until {
            return Ok(());
        }
        clock.sleep_until(clock.now().after(KILL_POLL)).await;
    }
}

/// When the guardian kills, from now on: half a margin later than we do, who can also say so.
fn time_to_kill(deadline: Option<Moment>, policy: &Policy, clock: &Clock) -> Option<Duration> {
    deadline.map(|end| end.before(policy.margin / 2).since(clock.now()))
}

/// A signal by which the command was asked to end.
#[derive(Debug, Clone, Copy)]
struct Request {
    delivery: Delivery,
    at: Moment,
}

/// What a turn is about.
enum Step {
    Loss(LossReason),
    Signal(Delivery),
    Events(Option<Vec<Event>>),
    Moment,
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
    guardian_is_gone: bool,
    /// When to continue it, should it be stopped.
    wake_at: Moment,
    /// What is left of what the command started, as the guardian knows.
    rest: Rest,
    outcome: Option<Outcome>,
    loss: Option<LossReason>,
    /// The first INT or TERM.
    request: Option<Request>,
    /// The processes that may not be killed, because they became another user.
    refused: Vec<Pid>,
    /// Those that were named last.
    refused_told: Vec<Pid>,
    /// Signals that came when the command had ended and we had not heard of it.
    late: Vec<Delivery>,
    by_terminal: bool,
    by_loss: bool,
    lingering: bool,
}

impl<H: Hold> Supervisor<'_, H> {
    async fn run(mut self) -> io::Result<Ending> {
        loop {
            self.reap()?;
            let is_over = self.outcome.is_some() && self.everybody_is_gone();
            if is_over || self.is_out_of_reach() {
                if !is_over && self.refused != self.refused_told {
                    // Which ones run on.
                    self.tell_refused();
                }
                self.signals.put_back(&self.late);
                self.terminal.take_back(self.child.pid);
                self.learn_of_late_loss().await;
                self.guardian.dismiss();
                let by_loss = is_over && self.by_loss && self.request.is_none();
                return Ok(Ending { outcome: self.outcome, loss: self.loss, by_terminal: self.by_terminal, by_loss });
            }
            if self.outcome.is_some() {
                std::mem::take(&mut self.late).into_iter().for_each(|delivery| self.forward(delivery));
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
        let step = tokio::select! {
            biased;
            // Neither of the first two waits behind a command that keeps the guardian busy.
            reason = self.hold.lost(), if watches_loss => Step::Loss(reason),
            delivery = self.signals.next() => Step::Signal(delivery?),
            events = self.guardian.next(), if !self.guardian_is_gone => Step::Events(events?),
            () = moment => Step::Moment,
        };
        if let Step::Events(events) = step {
            return self.on_events(events);
        }
        // A signal or a loss that comes behind the command's end is not the command's.
        if !self.guardian_is_gone {
            let events = self.guardian.ready()?;
            self.on_events(events)?;
        }
        match step {
            Step::Loss(reason) => self.on_loss(reason),
            Step::Signal(delivery) => self.on_signal(delivery)?,
            Step::Events(_) | Step::Moment => {}
        }
        Ok(())
    }

    /// Buries the guardian, should it have been killed, and what fell to us from it.
    fn reap(&mut self) -> io::Result<()> {
        while let Some((pid, outcome)) = child::next_ended()? {
            if pid == self.guardian.pid() {
                self.guardian_is_gone = true;
            } else if pid == self.child.pid {
                // Its number is kept from others by the rest of its group, which only the number reaches without /proc.
                self.child.is_reaped = tree::is_visible() || self.child.group_is_gone();
                self.on_end(outcome);
            }
        }
        Ok(())
    }

    fn on_events(&mut self, events: Option<Vec<Event>>) -> io::Result<()> {
        // Killed: what it knew is learned from the kernel by the next turns.
        self.guardian_is_gone |= events.is_none();
        for event in events.into_iter().flatten() {
            match event {
                Event::Ended(outcome) => self.on_end(outcome),
                Event::Stopped(signal) => self.on_stop(signal)?,
                Event::Left(rest) => self.rest = rest,
                Event::Started(_) | Event::Refused(_) => {}
            }
        }
        Ok(())
    }

    fn on_end(&mut self, outcome: Outcome) {
        if self.outcome.is_some() {
            return;
        }
        let key = [Signal::INT, Signal::QUIT].iter().any(|signal| outcome == Outcome::Killed(signal.as_raw()));
        self.by_terminal = key && self.terminal.is_lent() && self.request.is_none() && self.stage == Stage::Running;
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
        // A daemon outlives a command that ends by itself, and not the lock in whose name the command is ended.
        let is_ended = self.stage == Stage::Killing || self.by_loss;
        let reach = if is_ended { Reach::Everything } else { Reach::Session };
        let is_known = self.rest == Rest::Nothing || (self.rest == Rest::Daemons && !is_ended);
        // Only the process that reaps can tell that nothing is left: the guardian, or ourselves if it was killed.
        let is_seen = || match tree::is_visible() {
            true => tree::is_clear(rustix::process::getpid(), reach, &[]),
            false => self.child.group_is_gone(),
        };
        let gone = is_known || (self.guardian_is_gone && is_seen());
        if !gone && !self.lingering {
            self.lingering = true;
            self.notes.say(&Note::Lingering { processes: tree::count(self.root(), reach).max(1) });
        }
        gone
    }

    /// Whether there is nothing left to be done: the lock is lost, and what still runs may not be killed.
    fn is_out_of_reach(&self) -> bool {
        let is_lost = || self.policy.on_lost != OnLost::Ignore && self.hold.is_lost();
        let no_other = || tree::is_clear(self.root(), Reach::Everything, &self.refused);
        self.stage == Stage::Killing && !self.refused.is_empty() && is_lost() && no_other()
    }

    /// What the command and its kin are below: not ourselves, since `elect` has left the daemons of earlier turns there.
    fn root(&self) -> Pid {
        let guardian = self.guardian.pid();
        if !self.guardian_is_gone && tree::is_living(guardian) { guardian } else { rustix::process::getpid() }
    }

    /// Continues the guardian, should others have stopped it.
    fn wake_guardian(&self) {
        if !self.guardian_is_gone {
            self.guardian.wake();
        }
    }

    /// Keeps the guardian's timer ahead of the lease, or behind it when the lease is not renewed.
    fn tell_guardian(&mut self) -> io::Result<()> {
        let deadline = self.hold.deadline().filter(|_| self.policy.on_lost == OnLost::Term);
        if deadline != self.guarded_until {
            self.guardian.kill_after(time_to_kill(deadline, self.policy, &self.clock))?;
            self.guarded_until = deadline;
        }
        Ok(())
    }

    /// Does what is due by the clock.
    fn look_at_clock(&mut self) {
        let now = self.clock.now();
        if now >= self.wake_at {
            self.wake_at = now.after(WAKE_POLL);
            self.wake_guardian();
        }
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
            Stage::Killing if self.refused.is_empty() => now.after(KILL_POLL),
            Stage::Killing => now.after(LINGER_POLL),
        };
        let lingers = self.guardian_is_gone && self.outcome.is_some();
        let look = if lingers { now.after(LINGER_POLL) } else { self.wake_at };
        due.min(look).min(self.next_look_at_lease(now))
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
        self.by_loss |= self.outcome.is_none();
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

    fn kill_everybody(&mut self) {
        // The whole group in one call, in which none of it can fork.
        self.child.signal(Signal::KILL);
        self.wake_guardian();
        self.refused = tree::kill(self.root(), Reach::Everything);
        // They may go on to start others: twice as many are worth another line, and not each one.
        if self.refused.len() >= (2 * self.refused_told.len()).max(1) {
            self.tell_refused();
        }
    }

    fn tell_refused(&mut self) {
        self.refused_told.clone_from(&self.refused);
        let processes = self.refused.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
        self.notes.say(&Note::Refused { processes });
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
        if self.outcome.is_none() && tree::is_visible() && !tree::is_living(self.child.pid) {
            // For what it left behind, or for us. The guardian is about to tell.
            self.late.push(delivery);
            return self.wake_guardian();
        }
        let Delivery { signal, .. } = delivery;
        let told_by_terminal = signal == Signal::HUP && self.terminal.is_hung_up();
        if told_by_terminal || self.child_got_it_too(delivery) {
            return;
        }
        if signal != Signal::INT && signal != Signal::TERM {
            return self.child.signal(signal);
        }
        if let Some(first) = self.request {
            if self.stage != Stage::Killing && !self.is_repeat(first, delivery) {
                self.kill();
            }
            return;
        }
        self.request = Some(Request { delivery, at: self.clock.now() });
        self.child.signal(signal);
        if let (Some(patience), Stage::Running) = (self.policy.patience, self.stage) {
            self.stage = Stage::Ending(self.clock.now().after(patience));
        }
    }

    /// Whether one process sent the same signal twice in a moment. A key that is pressed twice is two.
    fn is_repeat(&self, first: Request, delivery: Delivery) -> bool {
        delivery == first.delivery && !delivery.from_kernel && self.clock.now() < first.at.after(REPEAT)
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
