//! Runs a command while the lock is held, and ends it when the lock is lost.

use std::future::pending;
use std::io;
use std::process::Command;
use std::time::Duration;

use distlock::{Clock, LossReason, Moment};
use rustix::process::{Pid, Signal};

use crate::child::{self, Child, Outcome, Placement};
use crate::guardian::{GuardedCommand, Guardian, GuardianEvent, Remaining};
use crate::hold::Hold;
use crate::note::{Note, Notes};
use crate::policy::{OnLost, Policy};
use crate::signal_stream::{Delivery, FORWARDED, Signals};
use crate::terminal::Terminal;
use crate::tree::{self, Reach};

/// How often the wrapper looks for processes that the child left behind when there is no guardian to report them.
const LINGER_POLL: Duration = Duration::from_millis(100);

/// How often the wrapper continues the guardian in case another process stopped it: a stopped guardian reports
/// nothing.
const WAKE_POLL: Duration = Duration::from_secs(1);

/// How often to repeat the kill: the next pass finds processes that were forked during the last one.
const KILL_POLL: Duration = Duration::from_millis(10);

/// How long to wait for processes to end that were started by a guardian that was killed before its first report.
const ORPHAN_LIMIT: Duration = Duration::from_secs(10);

/// The same INT or TERM from the same sender within this time counts once: timeout(1) sends it to the process and to
/// its group.
const REPEAT: Duration = Duration::from_secs(1);

/// How a supervised command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// How the command itself ended; `None` when it still runs, cannot be killed, and the lock is lost.
    pub outcome: Option<Outcome>,
    /// Why the lock was lost, or why the wrapper ended the command on behalf of the lock.
    pub loss: Option<LossReason>,
    /// A terminal key killed the command while it had the terminal alone, so the other processes in the wrapper's
    /// group did not get the signal.
    pub by_terminal: bool,
    /// The command was ended because of the loss, and no INT or TERM had asked it to end.
    pub by_loss: bool,
}

/// Why there is no [`Ending`].
#[derive(Debug)]
pub enum SuperviseError {
    /// The command cannot be started.
    Exec(io::Error),
    /// The kernel refused what supervision needs.
    Internal(io::Error),
}

impl From<io::Error> for SuperviseError {
    fn from(error: io::Error) -> SuperviseError {
        SuperviseError::Internal(error)
    }
}

/// Runs `command` under `hold`. Returns once its process group, and every descendant in this session, has ended; only
/// then may the lock be released. Processes that cannot be killed because they run as another user are waited for as
/// long as the lock is held. Runs on the main thread, which must live as long as the process.
///
/// # Errors
/// When the command cannot be started; then no process of it is left.
///
/// # Cancel safety
/// None: dropping the future kills the command.
pub async fn supervise<H: Hold>(
    command: Command,
    policy: &Policy,
    hold: &H,
    signals: &mut Signals,
    notes: &mut Notes,
) -> Result<Ending, SuperviseError> {
    let clock = Clock::system();
    let started = clock.now();
    // If the guardian is killed, its descendants become children of this process.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(io::Error::from)?;
    let guarded_until = hold.deadline().filter(|_| policy.on_lost == OnLost::Term);
    // Without a lease, daemons may outlive a wrapper that was killed.
    let reach = if guarded_until.is_some() { Reach::Everything } else { Reach::Session };
    let guarded = GuardedCommand { command, placement: policy.placement, mask: signals.inherited_mask(), reach };
    let guardian = Guardian::start(guarded, time_to_kill(guarded_until, policy, &clock))?;
    let mut events = loop {
        tokio::select! {
            events = guardian.next() => break events?.into_iter().flatten(),
            () = clock.sleep_until(clock.now().after(WAKE_POLL)) => guardian.wake(),
        }
    };
    let pid = match events.next() {
        Some(GuardianEvent::Started(pid)) => pid,
        Some(GuardianEvent::Refused(error)) => {
            guardian.dismiss();
            return Err(SuperviseError::Exec(io::Error::from_raw_os_error(error)));
        }
        _ => {
            kill_orphans(&clock).await?;
            return Err(SuperviseError::Internal(io::Error::other("the guardian has ended")));
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
        remaining: Remaining::Unknown,
        outcome: None,
        loss: None,
        request: None,
        refused: Vec::new(),
        refused_reported: Vec::new(),
        late_signals: Vec::new(),
        by_terminal: false,
        by_loss: false,
        lingering_reported: false,
    };
    supervisor.on_events(Some(events.collect()))?;
    Ok(supervisor.run().await?)
}

/// Kills the processes in this session that a guardian started before it was killed without a first report, and waits
/// for them to end.
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

/// Returns how long from now the guardian waits before it kills: half a margin later than the wrapper, which can also
/// report the kill.
fn time_to_kill(deadline: Option<Moment>, policy: &Policy, clock: &Clock) -> Option<Duration> {
    deadline.map(|end| end.before(policy.margin / 2).since(clock.now()))
}

/// An INT or TERM that asked the command to end.
#[derive(Debug, Clone, Copy)]
struct EndRequest {
    delivery: Delivery,
    at: Moment,
}

/// The event that woke the supervisor.
enum Step {
    Loss(LossReason),
    Signal(Delivery),
    Events(Option<Vec<GuardianEvent>>),
    Moment,
}

/// How far the termination of the child has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// The child was signalled to end and is killed at this moment.
    Ending(Moment),
    /// SIGKILL is being sent.
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
    /// The deadline that the guardian's timer was set to.
    guarded_until: Option<Moment>,
    guardian_is_gone: bool,
    /// When to continue the guardian in case it is stopped.
    wake_at: Moment,
    /// Which processes of the command remain, as last reported by the guardian.
    remaining: Remaining,
    outcome: Option<Outcome>,
    loss: Option<LossReason>,
    /// The first INT or TERM.
    request: Option<EndRequest>,
    /// Processes that cannot be killed because they run as another user.
    refused: Vec<Pid>,
    /// The processes named in the last report.
    refused_reported: Vec<Pid>,
    /// Signals that arrived after the command ended and before the guardian reported its end.
    late_signals: Vec<Delivery>,
    by_terminal: bool,
    by_loss: bool,
    lingering_reported: bool,
}

impl<H: Hold> Supervisor<'_, H> {
    async fn run(mut self) -> io::Result<Ending> {
        loop {
            self.reap()?;
            self.replace_guardian()?;
            let is_over = self.outcome.is_some() && self.all_processes_ended();
            if is_over || self.is_out_of_reach() {
                if !is_over && self.refused != self.refused_reported {
                    self.report_refused();
                }
                self.signals.put_back(&self.late_signals);
                self.terminal.take_back(self.child.pid);
                self.check_for_late_loss().await;
                self.guardian.dismiss();
                let by_loss = is_over && self.by_loss && self.request.is_none();
                return Ok(Ending { outcome: self.outcome, loss: self.loss, by_terminal: self.by_terminal, by_loss });
            }
            if self.outcome.is_some() {
                std::mem::take(&mut self.late_signals).into_iter().for_each(|delivery| self.forward(delivery));
            }
            self.update_guardian_timer()?;
            self.act_on_deadlines();
            self.wait().await?;
        }
    }

    /// Kills everything that a killed guardian has left: if this process were killed or stopped next, nothing would end
    /// these processes before the lease ends.
    fn replace_guardian(&mut self) -> io::Result<()> {
        if !self.guardian_is_gone || self.stage == Stage::Killing {
            return Ok(());
        }
        // Its last reports.
        let events = self.guardian.ready()?;
        self.on_events(events)?;
        if self.outcome.is_none() || self.remaining > Remaining::Daemons {
            self.kill();
        }
        Ok(())
    }

    /// Reports a loss that arrived together with the command's end, or while the wrapper was stopped.
    async fn check_for_late_loss(&mut self) {
        if self.loss.is_none() && self.policy.on_lost != OnLost::Ignore && self.hold.is_lost() {
            let reason = self.hold.lost().await;
            self.notes.say(&Note::Lost { reason: reason.clone() });
            self.loss = Some(reason);
        }
    }

    /// Waits for a signal, a loss, a guardian event or the next deadline.
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
            // A loss or a signal does not wait behind a command that keeps the guardian busy.
            reason = self.hold.lost(), if watches_loss => Step::Loss(reason),
            delivery = self.signals.next() => Step::Signal(delivery?),
            events = self.guardian.next(), if !self.guardian_is_gone => Step::Events(events?),
            () = moment => Step::Moment,
        };
        if let Step::Events(events) = step {
            return self.on_events(events);
        }
        // A signal or a loss that arrives after the command's end is not for the command.
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

    /// Reaps the guardian, if it was killed, and the children inherited from it.
    fn reap(&mut self) -> io::Result<()> {
        while let Some((pid, outcome)) = child::next_ended()? {
            if pid == self.guardian.pid() {
                self.guardian_is_gone = true;
            } else if pid == self.child.pid {
                // While other processes remain in the group, the kernel does not reuse its number; without /proc only
                // that number reaches them.
                self.child.is_reaped = tree::is_visible() || self.child.group_is_gone();
                self.on_end(outcome);
            }
        }
        Ok(())
    }

    fn on_events(&mut self, events: Option<Vec<GuardianEvent>>) -> io::Result<()> {
        // The pipe's end: the guardian was killed. The next iterations learn its state from the kernel.
        self.guardian_is_gone |= events.is_none();
        for event in events.into_iter().flatten() {
            match event {
                GuardianEvent::Ended(outcome) => self.on_end(outcome),
                GuardianEvent::Stopped(signal) => self.on_stop(signal)?,
                GuardianEvent::Left(remaining) => self.remaining = remaining,
                GuardianEvent::Started(_) | GuardianEvent::Refused(_) => {}
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
        // The guardian killed the command when its timer expired: the wrapper was stopped past the deadline.
        let guardian_kill_at = self.guarded_until.map_or(Moment::NEVER, |end| end.before(self.policy.margin / 2));
        if self.loss.is_none() && self.clock.now() >= guardian_kill_at {
            self.loss = Some(LossReason::Expired);
            self.by_loss = true;
            self.notes.say(&Note::Lost { reason: LossReason::Expired });
        }
    }

    fn all_processes_ended(&mut self) -> bool {
        // A daemon may outlive a command that ended by itself, but not one that was ended because of the lock.
        let is_ended = self.stage == Stage::Killing || self.by_loss;
        let reach = if is_ended { Reach::Everything } else { Reach::Session };
        let is_known = self.remaining == Remaining::Nothing || (self.remaining == Remaining::Daemons && !is_ended);
        // Only the reaping process can tell that no process remains: the guardian, or the wrapper once the guardian
        // was killed.
        let is_seen = || match tree::is_visible() {
            true => tree::is_clear(rustix::process::getpid(), reach, &[]),
            false => self.child.group_is_gone(),
        };
        let gone = is_known || (self.guardian_is_gone && is_seen());
        if !gone && !self.lingering_reported {
            self.lingering_reported = true;
            self.notes.say(&Note::Lingering { processes: tree::count(self.root(), reach).max(1) });
        }
        gone
    }

    /// Whether nothing is left to do: the lock is lost, and the remaining processes cannot be killed.
    fn is_out_of_reach(&self) -> bool {
        let is_lost = || self.policy.on_lost != OnLost::Ignore && self.hold.is_lost();
        let no_other = || tree::is_clear(self.root(), Reach::Everything, &self.refused);
        self.stage == Stage::Killing && !self.refused.is_empty() && is_lost() && no_other()
    }

    /// Returns the ancestor of the command's processes. This is the wrapper only when the guardian is gone: daemons of
    /// earlier `elect` runs are the wrapper's children.
    fn root(&self) -> Pid {
        let guardian = self.guardian.pid();
        if !self.guardian_is_gone && tree::is_living(guardian) { guardian } else { rustix::process::getpid() }
    }

    fn wake_guardian(&self) {
        if !self.guardian_is_gone {
            self.guardian.wake();
        }
    }

    /// Sets the guardian's timer to the current lease deadline whenever the deadline changes.
    fn update_guardian_timer(&mut self) -> io::Result<()> {
        let deadline = self.hold.deadline().filter(|_| self.policy.on_lost == OnLost::Term);
        if deadline != self.guarded_until {
            self.guardian.kill_after(time_to_kill(deadline, self.policy, &self.clock))?;
            self.guarded_until = deadline;
        }
        Ok(())
    }

    /// Acts on the deadlines that have passed.
    fn act_on_deadlines(&mut self) {
        let now = self.clock.now();
        if now >= self.wake_at {
            self.wake_at = now.after(WAKE_POLL);
            self.wake_guardian();
        }
        match self.stage {
            Stage::Running => {
                if now >= self.at_most_deadline() {
                    let limit = self.policy.at_most.unwrap_or_default();
                    self.notes.say(&Note::HeldTooLong { limit });
                    self.loss.get_or_insert(LossReason::MaxHold);
                    self.terminate();
                } else if now >= self.term_deadline() {
                    self.on_risk(now);
                    self.terminate();
                }
            }
            Stage::Ending(kill_at) => {
                if self.loss.is_none() && now >= self.term_deadline() {
                    self.on_risk(now);
                }
                // When the lease ends before the grace period, the lease decides.
                if now >= kill_at.min(self.kill_deadline()) {
                    self.kill();
                }
            }
            Stage::Killing => self.kill_all(),
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
            Stage::Running => self.at_most_deadline().min(self.term_deadline()),
            Stage::Ending(kill_at) if self.loss.is_some() => kill_at.min(self.kill_deadline()),
            Stage::Ending(kill_at) => kill_at.min(self.term_deadline()),
            Stage::Killing if self.refused.is_empty() => now.after(KILL_POLL),
            Stage::Killing => now.after(LINGER_POLL),
        };
        let is_polling = self.guardian_is_gone && self.outcome.is_some();
        let look = if is_polling { now.after(LINGER_POLL) } else { self.wake_at };
        due.min(look).min(self.next_lease_check(now))
    }

    /// Returns the next check of the lease: often enough to pass a renewal to the guardian long before its timer
    /// expires.
    fn next_lease_check(&self, now: Moment) -> Moment {
        match self.guarded_until {
            Some(deadline) => now.after((deadline.since(now) / 4).max(LINGER_POLL)),
            None => Moment::NEVER,
        }
    }

    /// Returns when `--at-most` is over.
    fn at_most_deadline(&self) -> Moment {
        self.policy.at_most.map_or(Moment::NEVER, |limit| self.started.after(limit))
    }

    /// Returns when the child must be signalled so that SIGKILL comes before the lease ends. A lease that is renewed
    /// never gets there.
    fn term_deadline(&self) -> Moment {
        match self.kill_deadline() {
            Moment::NEVER => Moment::NEVER,
            last => last.before(self.policy.grace),
        }
    }

    /// Returns when the child must be killed so that the kernel has ended it before the lease ends.
    fn kill_deadline(&self) -> Moment {
        match self.hold.deadline() {
            Some(deadline) if self.policy.on_lost == OnLost::Term => deadline.before(self.policy.margin),
            _ => Moment::NEVER,
        }
    }

    fn on_loss(&mut self, reason: LossReason) {
        self.notes.say(&Note::Lost { reason: reason.clone() });
        self.loss = Some(reason);
        match (self.policy.on_lost, self.stage) {
            (OnLost::Term, Stage::Running) => self.terminate(),
            // The child was asked to end by a forwarded signal, perhaps without a time limit: now there is one.
            (OnLost::Term, Stage::Ending(kill_at)) => {
                self.stage = Stage::Ending(kill_at.min(self.clock.now().after(self.policy.grace)));
            }
            _ => {}
        }
    }

    /// Sends the first signal. SIGKILL follows after the grace period, and before the lease ends if there is one.
    fn terminate(&mut self) {
        // A command that ended by itself was not ended by the loss; only the processes that it left are signalled.
        self.by_loss |= self.outcome.is_none();
        let now = self.clock.now();
        let kill_at = now.after(self.policy.grace).min(self.kill_deadline());
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
        self.kill_all();
    }

    fn kill_all(&mut self) {
        // One call kills the whole group, so that no member can fork in between.
        self.child.signal(Signal::KILL);
        self.wake_guardian();
        self.refused = tree::kill(self.root(), Reach::Everything);
        // These processes may start others: report again only when their number has doubled.
        if self.refused.len() >= (2 * self.refused_reported.len()).max(1) {
            self.report_refused();
        }
    }

    fn report_refused(&mut self) {
        self.refused_reported.clone_from(&self.refused);
        let processes = self.refused.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
        self.notes.say(&Note::Refused { processes });
    }

    fn on_signal(&mut self, delivery: Delivery) -> io::Result<()> {
        match delivery.signal {
            Signal::CONT => self.on_continue(),
            Signal::TSTP => self.on_stop_request(delivery)?,
            signal if FORWARDED.contains(&signal) => self.forward(delivery),
            // SIGCHLD: the next iteration reaps.
            _ => {}
        }
        Ok(())
    }

    fn forward(&mut self, delivery: Delivery) {
        if self.outcome.is_none() && tree::is_visible() && !tree::is_living(self.child.pid) {
            // The command has ended: the signal is for the processes that it left, or for the wrapper. The guardian is
            // about to report the end.
            self.late_signals.push(delivery);
            return self.wake_guardian();
        }
        let Delivery { signal, .. } = delivery;
        let is_hung_up = signal == Signal::HUP && self.terminal.is_hung_up();
        if is_hung_up || self.child_received_it(delivery) {
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
        self.request = Some(EndRequest { delivery, at: self.clock.now() });
        self.child.signal(signal);
        if let (Some(kill_after), Stage::Running) = (self.policy.kill_after, self.stage) {
            self.stage = Stage::Ending(self.clock.now().after(kill_after));
        }
    }

    /// Whether the same process repeated the same signal within [`REPEAT`]. A key pressed twice counts twice.
    fn is_repeat(&self, first: EndRequest, delivery: Delivery) -> bool {
        delivery == first.delivery && !delivery.from_kernel && self.clock.now() < first.at.after(REPEAT)
    }

    /// Whether the child received the signal as well: terminal keys signal the whole foreground group, which includes
    /// a child in the wrapper's group.
    fn child_received_it(&self, delivery: Delivery) -> bool {
        delivery.from_kernel && self.child.placement == Placement::Foreground
    }

    /// Handles a stopped child, which may have stopped only because it needs the terminal.
    fn on_stop(&mut self, signal: i32) -> io::Result<()> {
        let wants_terminal = [Signal::TTIN, Signal::TTOU].into_iter().find(|it| it.as_raw() == signal);
        match wants_terminal {
            Some(_) if self.child.placement == Placement::OwnGroup && self.terminal.lend(self.child.pid) => {
                self.child.signal(Signal::CONT);
                Ok(())
            }
            Some(signal) => self.stop_with_child(signal),
            None if signal == Signal::TSTP.as_raw() && self.terminal.is_lent() => self.stop_with_child(Signal::TSTP),
            // Stopped by a debugger or a user: the lock stays held.
            None => Ok(()),
        }
    }

    /// Handles a request to stop the wrapper: the child is stopped first.
    fn on_stop_request(&mut self, delivery: Delivery) -> io::Result<()> {
        if !self.child_received_it(delivery) {
            // Not TSTP: a child that ignores TSTP would run on while the wrapper is stopped.
            self.child.signal(Signal::STOP);
        }
        self.stop_with_child(Signal::TSTP)
    }

    /// Stops this process together with its child, so that the shell sees a stopped job. The SIGCONT that follows
    /// arrives as a signal.
    fn stop_with_child(&mut self, signal: Signal) -> io::Result<()> {
        let had_terminal = self.terminal.take_back(self.child.pid);
        if !self.signals.stop(signal)? {
            // The process group is orphaned: no shell could continue the wrapper, so the kernel did not stop it and
            // would not have stopped the child. A child that needs the terminal will never get it: it receives SIGHUP,
            // as the kernel sends to orphaned groups.
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

    /// Handles SIGCONT: the child continues only if the lock is still held.
    fn on_continue(&mut self) {
        if self.policy.on_lost == OnLost::Term && self.stage != Stage::Killing && self.hold.is_lost() {
            // A later iteration reports the reason of the loss.
            return self.kill();
        }
        self.child.signal(Signal::CONT);
    }
}
