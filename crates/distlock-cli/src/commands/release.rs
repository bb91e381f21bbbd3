//! `distlock release`: releases a lock taken with `acquire`.

use crate::commands::renew::send_request;
use crate::control_request::ControlAction;
use crate::exit::Exit;
use crate::flags::Release;

pub(super) fn main(flags: &Release) -> Exit {
    send_request(&flags.name, &flags.token, ControlAction::Release, &flags.output)
}
