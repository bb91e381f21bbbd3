//! `distlock elect`: runs a command only while leader.

use distlock::Mode;

use crate::commands::fail;
use crate::commands::run::{self, Repeat};
use crate::exit::{Exit, ExitCode};
use crate::flags::Elect;

pub(super) fn main(flags: Elect) -> Exit {
    let Elect { value, mut run } = flags;
    run.lock.reason = value.or(run.lock.reason);
    if run.lock.mode() != Mode::Exclusive {
        return fail(ExitCode::Usage, "an election has one leader: -s and -j cannot be used here");
    }
    if run.once.once_per.is_some() || run.once.tick.is_some() {
        return fail(ExitCode::Usage, "a leader runs until it is none: --once-per and --tick belong to `run`");
    }
    run::run_repeatedly(&run, Repeat::UntilCommandEnds)
}
