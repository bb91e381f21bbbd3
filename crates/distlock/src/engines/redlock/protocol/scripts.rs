//! What a node runs in one go.

use crate::engines::redis::script::Script;

pub(crate) static ROUND: Script = Script::new(
    "round",
    concat!(include_str!("alone.lua"), include_str!("shared.lua"), include_str!("note.lua"), include_str!("batch.lua")),
);
pub(crate) static BREAK: Script = Script::new("break", concat!(include_str!("shared.lua"), include_str!("break.lua")));
pub(crate) static RENEW: Script = Script::new("renew", include_str!("renew.lua"));
pub(crate) static HORIZON: Script =
    Script::new("horizon", concat!(include_str!("note.lua"), include_str!("leases_left.lua")));
pub(crate) static BIRTH: Script =
    Script::new("birth", concat!(include_str!("note.lua"), include_str!("start_quarantine.lua")));
pub(crate) static LEAP: Script =
    Script::new("leap", concat!(include_str!("note.lua"), include_str!("quarantine_after_leap.lua")));

#[cfg(test)]
static ALL: [&Script; 6] = [&ROUND, &BREAK, &RENEW, &HORIZON, &BIRTH, &LEAP];

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
