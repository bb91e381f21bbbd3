//! `cargo xtask record`: runs the program on the file engine and writes docs/images/terminal.svg from what it printed.

mod picture;

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::cmd::Cmd;
use crate::test::target_directory;
use picture::{Line, picture};

const PICTURE: &str = "docs/images/terminal.svg";
/// The columns of the terminal.
const COLUMNS: usize = 96;
/// The time between the end of a command and the next one.
const PAUSE: Duration = Duration::from_millis(1200);
/// What the shell prints at the end of each command.
const END: &str = "--end of command--";

/// A step of the recording.
enum Step {
    /// A command that the picture shows.
    Typed(&'static str),
    /// A command that the picture does not show: it waits for an event.
    Hidden(&'static str),
}

const SCRIPT: [Step; 7] = [
    Step::Typed("distlock run --reason 'nightly export' nightly -- sleep 4 &"),
    Step::Hidden("timeout 30 sh -c 'until distlock ls | grep -q nightly; do sleep 0.1; done'"),
    Step::Typed("distlock ls"),
    Step::Typed("distlock run -n nightly -- echo second || echo \"exit code $?\""),
    Step::Typed("distlock run -w 60 nightly -- sh -c 'echo \"my turn, fencing token $DISTLOCK_TOKEN\"'"),
    Step::Typed("distlock run --once-per 1d backup -- echo 'backing up'"),
    Step::Typed("distlock run --once-per 1d backup -- echo 'backing up'"),
];

/// Records the script and writes the picture. Returns whether that succeeded.
pub(crate) fn run() -> bool {
    let build = Cmd::cargo(&["build", "-q", "--workspace", "--all-features", "--bin", "distlock"]);
    if !build.succeeds() {
        return false;
    }
    let program = target_directory().join("debug").canonicalize();
    let recorded = program.and_then(|program| record(&program));
    let written = recorded.and_then(|lines| fs::write(PICTURE, picture(&lines, COLUMNS)));
    match &written {
        Ok(()) => println!("wrote {PICTURE}: look at it before you commit it"),
        Err(error) => eprintln!("{PICTURE}: {error}"),
    }
    written.is_ok()
}

/// Runs the script in one shell and returns its lines, each with the time at which it appeared.
fn record(program: &Path) -> io::Result<Vec<Line>> {
    let directory = std::env::temp_dir().join(format!("distlock-record-{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let (reader, writer) = io::pipe()?;
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh")
        .current_dir(&directory)
        .env("PATH", path)
        .env("USER", "ops")
        .env("DISTLOCK_LOCK_DIR", directory.join("locks"))
        .env_remove("DISTLOCK_URL")
        .arg("-e")
        .stdin(Stdio::piped())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()?;
    let recorded = shell.stdin.take().ok_or_else(|| io::Error::other("no input")).and_then(|mut input| {
        let mut output = BufReader::new(reader).lines();
        let (mut clock, mut lines) = (Duration::ZERO, Vec::new());
        for step in &SCRIPT {
            let (Step::Typed(command) | Step::Hidden(command)) = step;
            let is_shown = matches!(step, Step::Typed(_));
            clock += if is_shown { PAUSE } else { Duration::ZERO };
            if is_shown {
                lines.push(Line::typed(clock, command));
            }
            let start = Instant::now();
            writeln!(input, "{command}\necho '{END}'")?;
            // A command that fails ends the shell, and its output with it.
            loop {
                let text = output.next().ok_or_else(|| io::Error::other(format!("failed: {command}")))??;
                if text == END {
                    break;
                }
                lines.push(Line::printed(clock + start.elapsed(), &text));
            }
            clock += if is_shown { start.elapsed() } else { Duration::ZERO };
        }
        Ok(lines)
    });
    // The shell ends with its input.
    shell.wait()?;
    fs::remove_dir_all(&directory)?;
    recorded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_in_the_repository_shows_the_script() {
        let picture = fs::read_to_string(crate::root().join(PICTURE)).expect("cargo xtask record writes it");
        let typed = SCRIPT.iter().filter_map(|step| match step {
            Step::Typed(command) => Some(picture::escaped(command)),
            Step::Hidden(_) => None,
        });
        for command in typed {
            assert!(picture.contains(&format!(">{command}<")), "not in {PICTURE}: {command}; cargo xtask record");
        }
    }
}
