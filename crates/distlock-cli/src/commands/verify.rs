//! `distlock verify`: tests locks on this engine by provoking two holders at once.
//!
//! Workers are separate processes, so that they can be stopped and killed like real ones. All run on this machine, so
//! that one clock orders their holds.

mod history;
pub(crate) mod worker;

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use distlock::Clock;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use self::history::{WorkerHold, violations};
use crate::command_line;
use crate::commands::{fail, with_engine};
use crate::exit::{Exit, ExitCode};
use crate::flags::Verify;
use crate::histogram::Histogram;
use crate::note::Notes;

/// The lock that all workers take.
const NAME: &str = "distlock-verify";
/// How many violations are printed.
const MAX_PRINTED: usize = 10;
/// How long workers may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(10);

pub(super) fn main(mut flags: Verify) -> Exit {
    flags.engine.url = flags.target.take().or(flags.engine.url);
    // An unusable engine is reported once, not by every worker.
    let mut is_fair = false;
    let opened = with_engine(&flags.engine, &flags.output, async |engine| {
        is_fair = engine.locker.capabilities().fair;
        engine.locker.close().await?;
        Ok(Exit::SUCCESS)
    });
    if opened != Exit::SUCCESS {
        return opened;
    }
    match VerifyRun::of(&flags) {
        Ok(run) => run.report(&flags, is_fair),
        Err(error) => fail(ExitCode::Internal, format!("cannot run a worker: {error}")),
    }
}

/// A worker's line: the worker's number, and the line with an event, a time and a token.
type WorkerLine = (usize, String);

/// One worker process.
struct Worker {
    child: Child,
    disturbed: bool,
    /// When it was killed, by the workers' clock.
    killed: Option<u64>,
}

struct VerifyRun {
    workers: Vec<Worker>,
    lines: Vec<WorkerLine>,
    kills: u32,
    pauses: u32,
    /// Whether a user sees the progress, by [`Notes::are_seen`].
    is_seen: bool,
}

impl VerifyRun {
    fn of(flags: &Verify) -> io::Result<VerifyRun> {
        let (sender, receiver) = mpsc::channel();
        let is_seen = Notes::new((&flags.output).into(), flags.output.json).are_seen();
        let mut run = VerifyRun { workers: Vec::new(), lines: Vec::new(), kills: 0, pauses: 0, is_seen };
        let mut alive = Vec::new();
        for _ in 0..flags.workers {
            alive.push(run.start(&sender)?);
        }
        let start = Instant::now();
        let disturbances = flags.kills + flags.pauses;
        for number in 0..disturbances {
            run.listen(&receiver, start + flags.time * (number + 1) / (disturbances + 1), start + flags.time);
            let victim = usize::try_from(number).unwrap_or(0) % alive.len();
            if number < flags.pauses {
                run.pause(alive[victim], flags.ttl + flags.ttl / 2, &receiver);
            } else {
                run.kill(alive[victim]);
                alive[victim] = run.start(&sender)?;
            }
        }
        run.listen(&receiver, start + flags.time, start + flags.time);
        drop(sender);
        run.stop(&alive, &receiver);
        Ok(run)
    }

    fn start(&mut self, sender: &Sender<WorkerLine>) -> io::Result<usize> {
        let mut words = command_line::words().into_iter();
        let program = words.next().unwrap_or_default();
        let program = std::env::current_exe().unwrap_or_else(|_| program.into());
        // The same flags, for the internal command.
        let mut command = Command::new(program);
        command.arg(worker::COMMAND).args(words.skip(1)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let number = self.workers.len();
        let (stdout, sender) = (child.stdout.take(), sender.clone());
        std::thread::spawn(move || {
            let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines());
            for line in lines.map_while(Result::ok) {
                let _ = sender.send((number, line));
            }
        });
        self.workers.push(Worker { child, disturbed: false, killed: None });
        Ok(number)
    }

    /// Reads the workers' lines until `until`; `end` is for the progress line.
    fn listen(&mut self, receiver: &Receiver<WorkerLine>, until: Instant, end: Instant) {
        let mut shown = Instant::now();
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if let Ok(line) = receiver.recv_timeout(left.min(Duration::from_millis(100))) {
                self.lines.push(line);
            }
            if self.is_seen && shown.elapsed() > Duration::from_millis(200) {
                shown = Instant::now();
                let left = end.saturating_duration_since(shown);
                eprint!("\r{} holds, {:.0} s left \x1b[K", self.lines.len() / 3, left.as_secs_f64());
            }
        }
        if self.is_seen {
            eprint!("\r\x1b[K");
        }
    }

    fn pause(&mut self, number: usize, time: Duration, receiver: &Receiver<WorkerLine>) {
        self.workers[number].disturbed = true;
        self.pauses += 1;
        let pid = Pid::from_child(&self.workers[number].child);
        let _ = kill_process(pid, Signal::STOP);
        let until = Instant::now() + time;
        self.listen(receiver, until, until);
        let _ = kill_process(pid, Signal::CONT);
    }

    fn kill(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        worker.disturbed = true;
        // Taken before the kill: the kernel may give its lock to the next worker while this process still waits for
        // the end of the killed one.
        worker.killed = Some(Clock::system().now().as_nanos());
        let _ = worker.child.kill();
        let _ = worker.child.wait();
        self.kills += 1;
    }

    /// Ends the workers by closing their stdin; kills those that do not end.
    fn stop(&mut self, alive: &[usize], receiver: &Receiver<WorkerLine>) {
        for number in alive {
            drop(self.workers[*number].child.stdin.take());
        }
        let end = Instant::now() + STOP_LIMIT;
        // The channel closes when the last worker has closed its stdout.
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            match receiver.recv_timeout(left) {
                Ok(line) => self.lines.push(line),
                Err(_) => break,
            }
        }
        for number in alive {
            let worker = &mut self.workers[*number];
            if !matches!(worker.child.try_wait(), Ok(Some(_))) && Instant::now() >= end {
                worker.killed = Some(Clock::system().now().as_nanos());
                let _ = worker.child.kill();
            }
            let _ = worker.child.wait();
        }
    }

    /// Returns the holds that the workers reported.
    fn holds(&self) -> Vec<WorkerHold> {
        let mut holds = Vec::new();
        for (number, worker) in self.workers.iter().enumerate() {
            let (mut asked, mut inside) = (0, None::<WorkerHold>);
            for (_, line) in self.lines.iter().filter(|(of, _)| *of == number) {
                let mut words = line.split(' ');
                let what = words.next().unwrap_or_default();
                let mut next = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
                let (at, token) = (next(), next());
                match what {
                    "asked" => asked = at,
                    "entered" => {
                        let disturbed = worker.disturbed;
                        inside = Some(WorkerHold { worker: number, asked, entered: at, left: at, token, disturbed });
                    }
                    _ => holds.extend(inside.take().map(|hold| WorkerHold { left: at, ..hold })),
                }
            }
            // Killed while holding: until then it may have believed that it held the lock.
            holds.extend(inside.map(|hold| WorkerHold { left: worker.killed.unwrap_or(hold.entered), ..hold }));
        }
        holds
    }

    fn report(&self, flags: &Verify, is_fair: bool) -> Exit {
        let holds = self.holds();
        let waits = holds.iter().map(|hold| Duration::from_nanos(hold.entered.saturating_sub(hold.asked)));
        let waits = Histogram::new(waits.collect());
        let found = violations(&holds, is_fair);
        let (count, kills, pauses) = (holds.len(), self.kills, self.pauses);
        let verdict = match (count, found.is_empty()) {
            (0, _) => "nothing was granted",
            (_, true) => "safe",
            (_, false) => "unsafe",
        };
        let text = if flags.output.json {
            let found: Vec<_> = found.iter().take(MAX_PRINTED).collect();
            let fields = json!({"verdict": verdict, "holds": count, "workers": flags.workers, "kills": kills,
                "pauses": pauses, "in_order": is_fair, "violations": found, "waits": waits.to_json()});
            format!("{fields}\n")
        } else {
            let shown: String = found.iter().take(MAX_PRINTED).map(|text| format!("  {text}\n")).collect();
            let order = if is_fair { "; served in order" } else { "" };
            format!(
                "{verdict}: {count} holds by {} workers, {kills} kills, {pauses} pauses\n\
                 looked at: one holder at a time; tokens rise{order}\n{shown}waits: {}\n{}",
                flags.workers,
                waits.summary(),
                waits.bars()
            )
        };
        let _ = io::stdout().write_all(text.as_bytes());
        match verdict {
            "safe" => Exit::SUCCESS,
            "unsafe" => Exit::Code(2),
            _ => Exit::Code(1),
        }
    }
}
