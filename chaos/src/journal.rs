//! The journal of a worker, in a file that survives the process.
//!
//! Every line is one write to the end of the file: everything written before SIGKILL is there, and only the last line
//! may be incomplete.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;

use distlock::Moment;

use crate::job::{JobStep, TickJob};

/// An event that a worker saw, with the number of its attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) at: Moment,
    pub(crate) attempt: u64,
    pub(crate) what: What,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// The worker requests a lock.
    Asks { lock: usize },
    /// The worker is in the queue.
    Queued,
    /// The worker was granted the lock.
    Granted { token: u64, deadline: Moment },
    /// The worker checked the lock, which was valid until then.
    Good { deadline: Moment },
    /// The worker learned that the lock is lost.
    Told { reason: String },
    /// The worker stopped believing in the lock at this moment, which may be earlier than the entry was written.
    Left,
    /// The fenced resource accepted or refused a write.
    Wrote { token: u64, accepted: bool },
    /// The lock is released, or the reason why that is unknown.
    Released { how: String },
    /// The worker did not get the lock.
    Failed { how: String },
    /// The worker was not scheduled since that moment.
    Stalled { since: Moment },
    /// A step of a request to run a job once per tick.
    Job { job: TickJob, step: JobStep, tick: String },
}

impl Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.at.as_nanos(), self.attempt)?;
        match &self.what {
            What::Asks { lock } => write!(f, "asks {lock}"),
            What::Queued => f.write_str("queued"),
            What::Granted { token, deadline } => write!(f, "granted {token} {}", deadline.as_nanos()),
            What::Good { deadline } => write!(f, "good {}", deadline.as_nanos()),
            What::Told { reason } => write!(f, "told {reason}"),
            What::Left => f.write_str("left"),
            What::Wrote { token, accepted } => write!(f, "wrote {token} {accepted}"),
            What::Released { how } => write!(f, "released {how}"),
            What::Failed { how } => write!(f, "failed {how}"),
            What::Stalled { since } => write!(f, "stalled {}", since.as_nanos()),
            What::Job { job, step, tick } => write!(f, "{job} {step} {tick}"),
        }
    }
}

impl FromStr for Entry {
    type Err = String;

    fn from_str(line: &str) -> Result<Entry, String> {
        let strange = || format!("not an entry: {line:?}");
        let number = |text: &str| text.parse::<u64>().map_err(|_| strange());
        let moment = |text: &str| number(text).map(Moment::from_nanos);
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().ok_or_else(strange);
        let (at, attempt, what) = (moment(word()?)?, number(word()?)?, word()?);
        let rest = words.next().unwrap_or_default();
        let pair = || rest.split_once(' ').ok_or_else(strange);
        let what = match what {
            "asks" => What::Asks { lock: rest.parse().map_err(|_| strange())? },
            "queued" => What::Queued,
            "granted" => What::Granted { token: number(pair()?.0)?, deadline: moment(pair()?.1)? },
            "good" => What::Good { deadline: moment(rest)? },
            "told" => What::Told { reason: rest.to_owned() },
            "left" => What::Left,
            "wrote" => What::Wrote { token: number(pair()?.0)?, accepted: pair()?.1 == "true" },
            "released" => What::Released { how: rest.to_owned() },
            "failed" => What::Failed { how: rest.to_owned() },
            "stalled" => What::Stalled { since: moment(rest)? },
            job => {
                let (step, tick) = pair()?;
                let (job, step) = (job.parse().map_err(|_| strange())?, step.parse().map_err(|_| strange())?);
                What::Job { job, step, tick: tick.to_owned() }
            }
        };
        Ok(Entry { at, attempt, what })
    }
}

/// The journal of one worker process.
#[derive(Debug)]
pub(crate) struct Journal(File);

impl Journal {
    pub(crate) fn open(path: &Path) -> io::Result<Journal> {
        Ok(Journal(File::options().create(true).append(true).open(path)?))
    }

    pub(crate) fn write(&self, at: Moment, attempt: u64, what: What) {
        let line = format!("{}\n", Entry { at, attempt, what }).replace('\n', " ");
        // A worker that cannot record its actions must not continue.
        (&self.0).write_all(format!("{}\n", line.trim_end()).as_bytes()).expect("a journal can be written");
    }
}

/// Reads a journal. An incomplete last line is left out.
pub(crate) fn read(path: &Path) -> Vec<Entry> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| line.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip_and_an_incomplete_line_is_ignored() {
        let moment = Moment::from_nanos(7);
        let all = [
            What::Asks { lock: 2 },
            What::Queued,
            What::Granted { token: u64::MAX, deadline: Moment::NEVER },
            What::Good { deadline: moment },
            What::Told { reason: "its lease ended".into() },
            What::Left,
            What::Wrote { token: 3, accepted: true },
            What::Released { how: "dropped".into() },
            What::Failed { how: "Timeout: held by\nsomebody".into() },
            What::Stalled { since: moment },
            What::Job { job: TickJob::AtMostOnce, step: JobStep::ToldDone, tick: "period:2000+1000".into() },
        ];
        let directory = distlock_testkit::servers::Directory::new();
        let path = directory.path().join("journal");
        let journal = Journal::open(&path).unwrap();
        all.iter().for_each(|what| journal.write(Moment::from_nanos(9), 4, what.clone()));
        File::options().append(true).open(&path).unwrap().write_all(b"12 4 gran").unwrap();
        let read = read(&path);
        assert_eq!(read.len(), all.len());
        assert_eq!(read[2], Entry { at: Moment::from_nanos(9), attempt: 4, what: all[2].clone() });
        assert_eq!(read[10].what, all[10]);
        assert_eq!(read[8].what, What::Failed { how: "Timeout: held by somebody".into() });
    }
}
