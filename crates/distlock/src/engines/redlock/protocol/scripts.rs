//! What a node runs in one go.

use crate::engines::redis::script::Script;

pub(super) static BATCH: Script = Script::new(
    "round",
    concat!(include_str!("alone.lua"), include_str!("shared.lua"), include_str!("note.lua"), include_str!("batch.lua")),
);
pub(super) static FORCE_RELEASE: Script =
    Script::new("break", concat!(include_str!("shared.lua"), include_str!("break.lua")));
pub(super) static RENEW: Script = Script::new("renew", include_str!("renew.lua"));
pub(super) static LEASES_LEFT: Script =
    Script::new("horizon", concat!(include_str!("note.lua"), include_str!("leases_left.lua")));
pub(super) static START_QUARANTINE: Script =
    Script::new("birth", concat!(include_str!("note.lua"), include_str!("start_quarantine.lua")));
pub(super) static QUARANTINE_AFTER_LEAP: Script =
    Script::new("leap", concat!(include_str!("note.lua"), include_str!("quarantine_after_leap.lua")));

#[cfg(test)]
static ALL: [&Script; 6] = [&BATCH, &FORCE_RELEASE, &RENEW, &LEASES_LEFT, &START_QUARANTINE, &QUARANTINE_AFTER_LEAP];

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
