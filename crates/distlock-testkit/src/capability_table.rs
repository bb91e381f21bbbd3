//! What each engine can do, as a Markdown table.

use std::fmt::Write;

use distlock::backend::{Capabilities, Scope};

use crate::conformance::{count, skips};

type Row = (&'static str, &'static str, fn(&Capabilities) -> bool);

/// Every capability: its name, what it means for a user, and how to read it.
const ROWS: [Row; 14] = [
    ("fair", "waiters are served in order", |able| able.fair),
    ("leases", "a hold ends by itself when its holder is gone", |able| able.leases),
    ("wakes", "a waiter is woken, and does not only poll", |able| able.wakes),
    ("inspects", "`ls`, `show`, `watch`, `ask`, `Inspect`", |able| able.inspects),
    ("breaks", "`break`, `force_release`", |able| able.breaks),
    ("shares", "`read` and `write`", |able| able.shares),
    ("slots", "`semaphore`", |able| able.slots),
    ("reenters", "`reentrant` from another process", |able| able.reenters),
    ("delays", "`lock_delay`", |able| able.delays),
    ("amends", "`relabel`, `proclaim`", |able| able.amends),
    ("adopts", "`export` and `adopt`", |able| able.adopts),
    ("claim_all", "`lock_all` in one step", |able| able.claim_all),
    ("history", "`history`, `Inspect::history`", |able| able.history),
    ("ticks", "`once`, `run --once-per`", |able| able.ticks),
];

/// Returns the table in Markdown: one column for each engine, one row for each capability, and a last row with the
/// number of conformance cases that apply.
#[must_use]
pub fn table(engines: &[(&str, Capabilities)]) -> String {
    let line = |cells: &mut dyn Iterator<Item = String>| format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "));
    let row = |title: String, cell: &dyn Fn(&Capabilities) -> String| {
        line(&mut std::iter::once(title).chain(engines.iter().map(|(_, able)| cell(able))))
    };
    let names = engines.iter().map(|(name, _)| (*name).to_owned());
    let mut text = line(&mut std::iter::once(String::new()).chain(names));
    let _ = writeln!(text, "|---|{}", "---|".repeat(engines.len()));
    text += &row("locks among".into(), &|able| scope(able.scope).into());
    for (name, meaning, has) in ROWS {
        let cell = |able: &Capabilities| if has(able) { "yes" } else { "–" }.to_owned();
        text += &row(format!("`{name}`: {meaning}"), &cell);
    }
    text += &row("conformance cases".into(), &|able| format!("{} of {}", count() - skips(able).len(), count()));
    text
}

fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Process => "tasks",
        Scope::Host => "processes",
        Scope::Cluster => "machines",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capability_has_its_row() {
        let none = Capabilities::new(Scope::Host);
        let debug = format!("{none:?}");
        let fields: Vec<_> = debug.split(": false").filter_map(|part| part.rsplit(' ').next()).collect();
        let fields: Vec<_> = fields.into_iter().filter(|field| *field != "}").collect();
        assert_eq!(ROWS.map(|(name, ..)| name).as_slice(), fields, "{debug}");
        assert!(ROWS.iter().all(|(_, _, has)| !has(&none)));
    }

    #[test]
    fn a_case_is_skipped_for_its_first_missing_need() {
        let none = Capabilities::new(Scope::Host);
        let skips = skips(&none);
        assert!(skips.contains(&("force_release_needs_the_right_token", "breaks")), "{skips:?}");
        assert!(!skips.iter().any(|(case, _)| *case == "one_holder_at_a_time"));
        assert!(table(&[("none", none)]).contains(&format!("{} of {}", count() - skips.len(), count())));
    }
}
