//! The texts of help: what the program prints without a command, examples, and lines that fit the screen.

use std::io::{self, IsTerminal, Write};

use rustix::termios::tcgetwinsize;

/// What `distlock` without arguments prints.
pub const FIRST: &str = "\
distlock runs a command while it holds a lock, on this machine or across many.

Usage: distlock COMMAND [OPTIONS] [ARGUMENTS]

  distlock run nightly -- ./backup.sh   run a command while holding the lock \"nightly\"
  distlock ls                           list who holds which lock, and who waits
  distlock doctor                       say where the locks are, and whether they are safe there

Locks are on this machine unless --url, DISTLOCK_URL or a configuration file names a server.
`distlock help` lists all commands, `distlock help run` the options of one, with examples.
";

/// What follows the list of all commands.
pub const PROGRAM: &str = "\
`distlock help COMMAND` shows the options of a command, with examples.

Settings, each a variable, a key of the configuration file or a part of the URL:
  DISTLOCK_URL             the engine: redis://, redlock://, etcd://, postgres://, file://, mem:// and more
  DISTLOCK_DRIVER, DISTLOCK_ENDPOINTS
                           the engine and its servers, instead of a URL
  DISTLOCK_PREFIX          what the names of all locks begin with on a server
  DISTLOCK_DEFAULT_TTL     the lease, unless --ttl is given
  DISTLOCK_HISTORY         how many entries the history of a lock keeps
  DISTLOCK_DIAL_TIMEOUT, DISTLOCK_RETRY_INTERVAL, DISTLOCK_MAX_RETRIES
                           how long and how often to try
  DISTLOCK_USERNAME, DISTLOCK_PASSWORD, DISTLOCK_PASSWORD_FILE
                           the login
  DISTLOCK_TLS_CA, DISTLOCK_TLS_CERT, DISTLOCK_TLS_KEY
                           files for encrypted connections
  DISTLOCK_LOCK_DIR        the directory of locks of this machine
Files: --config, ~/.config/distlock/config.toml, /etc/distlock/config.toml";

/// The widest line when the output is no terminal.
const WIDTH: usize = 100;
/// The narrowest screen for which lines are broken.
const NARROWEST: usize = 40;

/// Prints a text of help on stdout, in lines that fit the screen. A reader that stops reading is not a failure.
pub fn print(text: &str) {
    let mut stdout = io::stdout();
    let columns = if stdout.is_terminal() { tcgetwinsize(&stdout).map_or(0, |size| size.ws_col.into()) } else { WIDTH };
    let columns = if columns == 0 { WIDTH } else { columns.max(NARROWEST) };
    let _ = stdout.write_all(fit(text, columns).as_bytes());
}

/// Breaks lines that are too long between words. The rest begins below the description, or where the line began.
fn fit(text: &str, columns: usize) -> String {
    let mut fitted = String::new();
    for line in text.lines() {
        let indent =
            description(line).filter(|at| *at < columns / 2).unwrap_or(2 + line.len() - line.trim_start().len());
        let mut rest = line;
        let mut width = columns;
        while rest.chars().count() > width {
            let end = rest.char_indices().nth(width + 1).map_or(rest.len(), |(at, _)| at);
            let from = if width == columns { indent.min(end) } else { 0 };
            let Some(at) = rest[..end].rfind(' ').filter(|at| *at > from) else { break };
            fitted.push_str(rest[..at].trim_end());
            fitted.push('\n');
            fitted.push_str(&" ".repeat(indent));
            rest = rest[at..].trim_start();
            width = columns - indent;
        }
        fitted.push_str(rest);
        fitted.push('\n');
    }
    fitted
}

/// Returns where the description of an option or command begins: behind two spaces or more.
fn description(line: &str) -> Option<usize> {
    let start = line.len() - line.trim_start().len();
    let gap = start + line[start..].find("  ")?;
    (start > 0).then(|| line.len() - line[gap..].trim_start().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_below_their_description() {
        let text = "Usage: x\n  -a, --all   one two three four five six\nplain words that are much too long for it\n";
        let below = " ".repeat(14);
        let broken = format!("  -a, --all   one two three\n{below}four five six\n");
        assert_eq!(fit(text, 30), format!("Usage: x\n{broken}plain words that are much too\n  long for it\n"));
        assert_eq!(fit(text, 100), text);
    }

    #[test]
    fn a_word_that_is_too_long_stays_whole() {
        let text = format!("  {}\n", "x".repeat(60));
        assert_eq!(fit(&text, 40), text);
    }

    #[test]
    fn the_first_text_fits_a_terminal() {
        for line in FIRST.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
