//! A minimal Redis: it speaks the protocol, runs the library's own scripts, and expires keys by its own clock.

mod command;
mod reply;
mod scripts;
mod store;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use turmoil::net::TcpListener;
use turmoil::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::broken::Broken;
use crate::server::command::{Now, execute};
use crate::server::reply::Reply;
use crate::server::scripts::Scripts;
use crate::server::store::Store;
use crate::timeline::{Timeline, true_time};

/// The port of a server.
pub(crate) const PORT: u16 = 6379;

pub(crate) fn name(number: usize) -> String {
    format!("server{number}")
}

/// The machine, which survives its server: a disk and a clock.
pub(crate) struct Machine {
    number: usize,
    disk: RefCell<Store>,
    /// Its clock at the start of the simulation, in microseconds, and its rate error.
    epoch_us: u64,
    drift: f64,
    /// By how much the clock has jumped forward.
    leapt_us: Cell<u64>,
    /// How often the server was started.
    lives: Cell<u64>,
    timeline: Timeline,
    broken: Option<Broken>,
}

impl Machine {
    pub(crate) fn new(number: usize, epoch_us: u64, drift: f64, timeline: Timeline, broken: Option<Broken>) -> Machine {
        let (disk, leapt_us, lives) = (RefCell::default(), Cell::new(0), Cell::new(0));
        Machine { number, disk, epoch_us, drift, leapt_us, lives, timeline, broken }
    }

    /// Returns the time of its clock at a moment of the true time.
    fn at(&self, moment: Duration) -> Now {
        let passed = moment.mul_f64(1.0 + self.drift);
        Now { us: self.epoch_us + self.leapt_us.get() + u64::try_from(passed.as_micros()).unwrap_or(u64::MAX) }
    }

    /// Moves its clock forward.
    pub(crate) fn leap(&self, by: Duration) {
        self.leapt_us.set(self.leapt_us.get() + u64::try_from(by.as_micros()).unwrap_or(u64::MAX));
    }

    /// Deletes all data.
    pub(crate) fn wipe(&self) {
        *self.disk.borrow_mut() = Store::default();
    }

    /// Returns the keys that still exist at a moment of the true time.
    pub(crate) fn kept(&self, moment: Duration) -> Vec<String> {
        self.disk.borrow().after(self.at(moment).ms())
    }
}

/// A server process.
struct Server {
    machine: Rc<Machine>,
    life: u64,
    /// In true time.
    born: Duration,
    scripts: RefCell<Option<Scripts>>,
    /// The subscribers of each channel.
    channels: RefCell<BTreeMap<Vec<u8>, Subscribers>>,
}

/// The connections that subscribe to a channel, by their numbers.
type Subscribers = BTreeMap<u64, UnboundedSender<Reply>>;

/// Serves until it is crashed.
pub(crate) async fn serve(machine: Rc<Machine>) -> turmoil::Result {
    machine.lives.set(machine.lives.get() + 1);
    let life = machine.lives.get();
    let (scripts, channels) = (RefCell::default(), RefCell::default());
    let server = Rc::new(Server { machine, life, born: true_time(), scripts, channels });
    let called = Rc::downgrade(&server);
    let command = move |words: &[Vec<u8>]| match called.upgrade() {
        Some(server) => server.execute(words),
        None => Reply::Error("ERR it is gone".into()),
    };
    *server.scripts.borrow_mut() = Some(Scripts::new(server.machine.broken, command)?);
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    for number in 0.. {
        let (reading, writing) = listener.accept().await?.0.into_split();
        tokio::task::spawn_local(server.clone().connection(number, reading, writing));
    }
    Ok(())
}

impl Server {
    async fn connection(self: Rc<Self>, number: u64, reading: OwnedReadHalf, writing: OwnedWriteHalf) {
        let (outbox, mut outgoing) = unbounded_channel::<Reply>();
        let written = tokio::task::spawn_local(async move {
            let mut writing = writing;
            while let Some(reply) = outgoing.recv().await {
                let mut bytes = Vec::new();
                reply.encode(&mut bytes);
                if writing.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        });
        let mut reading = BufReader::new(reading);
        while let Ok(Some(words)) = read_command(&mut reading).await {
            let reply = self.answer(number, &words, &outbox);
            if outbox.send(reply).is_err() {
                break;
            }
        }
        self.channels.borrow_mut().values_mut().for_each(|subscribers| drop(subscribers.remove(&number)));
        written.abort();
    }

    fn answer(&self, number: u64, words: &[Vec<u8>], outbox: &UnboundedSender<Reply>) -> Reply {
        let name = words.first().map(|name| String::from_utf8_lossy(name).to_uppercase()).unwrap_or_default();
        self.machine.timeline.note(format_args!(
            "server {} connection {number}: {name} of {} words",
            self.machine.number,
            words.len()
        ));
        match (name.as_str(), words) {
            ("HELLO", _) => Reply::Array(["version", "7.0.0", "mode", "standalone"].map(Reply::text).to_vec()),
            ("ROLE", _) => Reply::Array(vec![Reply::text("master"), Reply::Int(0), Reply::Array(Vec::new())]),
            ("EVAL" | "EVALSHA", [_, script, rest @ ..]) => match &mut *self.scripts.borrow_mut() {
                Some(scripts) => scripts.evaluate(name == "EVALSHA", script, rest),
                None => Reply::Error("LOADING it is starting".into()),
            },
            ("SUBSCRIBE", [_, channel]) => {
                self.channels.borrow_mut().entry(channel.clone()).or_default().insert(number, outbox.clone());
                Reply::Push(vec![Reply::text("subscribe"), Reply::Bulk(channel.clone()), Reply::Int(1)])
            }
            _ => self.execute(words),
        }
    }

    /// Executes a command of a connection or of a script.
    fn execute(&self, words: &[Vec<u8>]) -> Reply {
        match words {
            [name, channel, message] if name == b"PUBLISH" => self.publish(channel, message),
            [name, ..] if name == b"INFO" => {
                let (id, age) = (format!("{:040x}", self.life), true_time().saturating_sub(self.born).as_secs());
                Reply::text(format!("run_id:{id}\r\nuptime_in_seconds:{age}\r\nmaster_replid:{id}\r\n"))
            }
            words => {
                execute(&mut self.machine.disk.borrow_mut(), self.machine.at(true_time()), words).unwrap_or_else(|| {
                    let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
                    Reply::Error(format!("ERR unknown command or syntax: {}", words.join(" ")))
                })
            }
        }
    }

    fn publish(&self, channel: &[u8], message: &[u8]) -> Reply {
        let push = [b"message", channel, message].map(Reply::text);
        let channels = self.channels.borrow();
        let subscribers = channels.get(channel).into_iter().flat_map(BTreeMap::values);
        let delivered = subscribers.filter(|subscriber| subscriber.send(Reply::Push(push.to_vec())).is_ok()).count();
        Reply::Int(i64::try_from(delivered).unwrap_or(i64::MAX))
    }
}

/// Reads the next command; `None` at the end of the connection.
async fn read_command(from: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Vec<Vec<u8>>>> {
    let Some(count) = read_number(from, b'*').await? else { return Ok(None) };
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let Some(length) = read_number(from, b'$').await? else { return Ok(None) };
        let mut word = vec![0; length + 2];
        from.read_exact(&mut word).await?;
        word.truncate(length);
        words.push(word);
    }
    Ok(Some(words))
}

async fn read_number(from: &mut BufReader<OwnedReadHalf>, mark: u8) -> io::Result<Option<usize>> {
    let mut line = Vec::new();
    if from.read_until(b'\n', &mut line).await? == 0 {
        return Ok(None);
    }
    let digits = line.strip_prefix(&[mark]).and_then(|digits| std::str::from_utf8(digits).ok());
    let number = digits.and_then(|digits| digits.trim_end().parse().ok());
    number.map(Some).ok_or_else(|| io::Error::other(format!("not the start of a command: {line:?}")))
}
