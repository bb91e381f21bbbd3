//! The scripts. Each runs atomically on one node.

use crate::engines::redis::script::Script;

pub(super) static BATCH: Script = Script::new("batch", concat!(include_str!("shared.lua"), include_str!("batch.lua")));
pub(super) static LEAN_CLAIM: Script = Script::new("lean_claim", include_str!("lean_claim.lua"));
pub(super) static LEAN_RELEASE: Script = Script::new("lean_release", include_str!("lean_release.lua"));
pub(super) static RENEW: Script = Script::new("renew", include_str!("renew.lua"));
pub(super) static FORCE_RELEASE: Script =
    Script::new("force_release", concat!(include_str!("shared.lua"), include_str!("force_release.lua")));
pub(super) static START_QUARANTINE: Script =
    Script::new("start_quarantine", concat!(include_str!("shared.lua"), include_str!("start_quarantine.lua")));
pub(super) static QUARANTINE_AFTER_LEAP: Script = Script::new(
    "quarantine_after_leap",
    concat!(include_str!("shared.lua"), include_str!("quarantine_after_leap.lua")),
);
pub(super) static LEASES_LEFT: Script =
    Script::new("leases_left", concat!(include_str!("shared.lua"), include_str!("leases_left.lua")));

#[cfg(test)]
static ALL: [&Script; 8] = [
    &BATCH,
    &LEAN_CLAIM,
    &LEAN_RELEASE,
    &RENEW,
    &FORCE_RELEASE,
    &START_QUARANTINE,
    &QUARANTINE_AFTER_LEAP,
    &LEASES_LEFT,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_have_no_shebang_and_never_print_numbers_by_tostring() {
        for script in ALL {
            assert!(!script.text.contains("#!"), "{script:?}: such a script is refused when memory is short");
            assert!(!script.text.contains("tostring("), "{script:?}");
        }
    }
}
