//! A program on a terminal, with a keyboard and a screen.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

use crate::common::{LIMIT, harness};

/// A program on a terminal of its own.
pub(crate) struct TerminalProgram {
    keyboard: File,
    pub(crate) screen: Arc<Mutex<String>>,
    pub(crate) shell: Child,
    /// The output that was already seen.
    pub(crate) past: String,
}

impl TerminalProgram {
    /// Starts an interactive shell with the harness as `$H`.
    pub(crate) fn start() -> TerminalProgram {
        let mut session = TerminalProgram::shell();
        session.type_text(&format!("export H={}; echo kn''own\n", harness().display()));
        session.expect_text("known");
        session
    }

    /// Starts an interactive shell.
    pub(crate) fn shell() -> TerminalProgram {
        let mut session = TerminalProgram::of(&["bash", "--norc", "--noprofile", "-i"]);
        // Without echo, so that all output was printed by a command.
        session.type_text("stty -echo; bind 'set enable-bracketed-paste off'; echo be''gin\n");
        session.expect_text("begin");
        session
    }

    /// Starts a program without a shell, as `ssh -t` does.
    pub(crate) fn of(words: &[&str]) -> TerminalProgram {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let line = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        let end = || Stdio::from(line.try_clone().unwrap());
        let shell = Command::new("setsid")
            .args(["--ctty", "--wait"])
            .args(words)
            .env("PS1", "$ ")
            .env("TERM", "dumb")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("setsid(1) is there");
        let keyboard = File::from(master);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut reader, seen) = (keyboard.try_clone().unwrap(), screen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut bytes) {
                seen.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        TerminalProgram { keyboard, screen, shell, past: String::new() }
    }

    pub(crate) fn type_text(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until `text` is on the screen, and discards the output up to it.
    pub(crate) fn expect_text(&mut self, text: &str) {
        let screen = self.screen.clone();
        let seen = std::time::Instant::now();
        loop {
            let mut screen = screen.lock().unwrap();
            if let Some(at) = screen.find(text) {
                self.past.extend(screen.drain(..at + text.len()));
                return;
            }
            assert!(seen.elapsed() < LIMIT, "no {text:?} on {screen:?}");
            drop(screen);
            // What a terminal shows can only be polled.
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

impl Drop for TerminalProgram {
    fn drop(&mut self) {
        let _ = self.keyboard.write_all(b"\x03\x03\nkill -9 $(jobs -p); exit\n");
        // For the shell to kill its jobs, which this process does not know; then the shell is killed, too.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
