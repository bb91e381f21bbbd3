//! `distlock release`: the end of a lock taken with `acquire`.

use crate::commands::renew::tell;
use crate::control_request::Action;
use crate::exit::Exit;
use crate::flags::Release;

pub(super) fn main(flags: &Release) -> Exit {
    tell(&flags.name, &flags.token, Action::Release, &flags.output)
}
