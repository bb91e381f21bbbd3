//! `distlock renew`: renews a lock taken with `acquire`.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::time::Duration;

use distlock::{MAX_TTL, MIN_TTL};
use serde_json::json;

use crate::advice::explain;
use crate::commands::{block_on, fail};
use crate::control_request::{ControlAction, ControlRequest};
use crate::control_socket::ask;
use crate::exit::{Exit, ExitCode};
use crate::flags::{self, Renew};
use crate::note::{Note, Notes};
use crate::plan;

pub(super) fn main(flags: &Renew) -> Exit {
    if flags.ttl.is_some_and(|ttl| !(MIN_TTL..=MAX_TTL).contains(&ttl)) {
        return fail(ExitCode::Usage, format!("--ttl: must be from {MIN_TTL:?} to {MAX_TTL:?}"));
    }
    send_request(&flags.name, &flags.token, ControlAction::Renew(flags.ttl), &flags.output)
}

/// Sends the request to the holder and prints the result.
pub(super) fn send_request(name: &OsStr, token: &str, action: ControlAction, output: &flags::Output) -> Exit {
    let parsed = plan::key(name).and_then(|key| {
        // Not parsed by clap, whose error message would repeat a mistyped secret.
        Ok((key, token.parse().map_err(|problem| format!("--token: {problem}"))?))
    });
    let (key, token) = match parsed {
        Ok(parsed) => parsed,
        Err(problem) => return fail(ExitCode::Usage, problem),
    };
    let mut notes = Notes::new(output.into(), output.json);
    block_on(async {
        let request = ControlRequest { name: key.as_str().into(), token, action };
        match ask(&request).await {
            Ok(ttl) => {
                done(&request, ttl, output.json, &mut notes);
                Exit::SUCCESS
            }
            Err(error) => {
                let error = error.with_key(&key);
                notes.say(&Note::Failed { message: explain(&error) });
                ExitCode::from(&error).into()
            }
        }
    })
}

fn done(request: &ControlRequest, ttl: Duration, as_json: bool, notes: &mut Notes) {
    let released = request.action == ControlAction::Release;
    notes.say(&if released { Note::Released } else { Note::Renewed { ttl } });
    if as_json {
        let mut fields = json!({"name": request.name, "held": !released});
        if !released {
            fields["ttl_s"] = json!(ttl.as_secs_f64());
        }
        // A write error does not change the result.
        let _ = writeln!(io::stdout(), "{fields}");
    }
}
