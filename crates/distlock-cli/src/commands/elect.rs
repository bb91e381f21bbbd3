//! `distlock elect`: a command that runs only while leader.

use crate::commands::run::{self, Turns};
use crate::exit::Exit;
use crate::flags::Elect;

pub(super) fn main(flags: Elect) -> Exit {
    let Elect { value, mut run } = flags;
    run.lock.reason = value.or(run.lock.reason);
    run::take_turns(&run, Turns::UntilTheCommandEnds)
}
