//! `distlock doctor`: reports what makes locks on this engine unsafe, slow or impossible.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use distlock::{Finding, Severity};
use serde_json::json;

use crate::advice::explain;
use crate::commands::{block_on, fail};
use crate::engine::Settings;
use crate::exit::{Exit, ExitCode};
use crate::flags::Doctor;
use crate::note::{Note, Notes};
use crate::progress;

pub(super) fn main(mut flags: Doctor) -> Exit {
    flags.engine.url = flags.target.take().or(flags.engine.url);
    block_on(async {
        let mut notes = Notes::new((&flags.output).into(), flags.output.json);
        let examined = async {
            let settings = Settings::read(&flags.engine)?;
            if let Some(directory) = settings.local_directory()? {
                notes.say(&Note::Local { directory: directory.display().to_string() });
            }
            progress::watched(&mut notes, settings.connecting(), settings.examine()).await
        };
        let mut findings = match examined.await {
            Ok(findings) => findings,
            Err(error) => return fail(ExitCode::from(&error), explain(&error)),
        };
        // The most severe first; equal ones in the order of the checks.
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        let text = match (flags.output.json, flags.output.quiet) {
            (true, _) => findings.iter().map(|finding| format!("{}\n", to_json(finding))).collect(),
            (false, true) => String::new(),
            (false, false) => to_text(&findings, flags.output.verbose),
        };
        let _ = io::stdout().write_all(text.as_bytes());
        code(&findings)
    })
}

/// Returns 0, 1 or 2 for fine, warnings and unsafe.
fn code(findings: &[Finding]) -> Exit {
    match findings.iter().map(|finding| finding.severity).max() {
        Some(Severity::Unsafe) => Exit::Code(2),
        Some(Severity::Warning) => Exit::Code(1),
        _ => Exit::SUCCESS,
    }
}

fn to_json(finding: &Finding) -> serde_json::Value {
    let Finding { severity, check, place, found, why, fix, .. } = finding;
    json!({"severity": severity.as_str(), "check": check, "place": place, "found": found, "why": why, "fix": fix})
}

fn to_text(findings: &[Finding], with_fine: bool) -> String {
    let mut text = String::new();
    for finding in findings.iter().filter(|finding| with_fine || finding.severity > Severity::Fine) {
        let _ = writeln!(text, "{:7}  {}  {}", finding.severity, finding.check, finding.place);
        for (name, words) in [("found", &finding.found), ("why", &finding.why), ("fix", &finding.fix)] {
            if !words.is_empty() {
                let _ = writeln!(text, "         {name:5}  {words}");
            }
        }
    }
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let counted = [Severity::Unsafe, Severity::Warning, Severity::Note, Severity::Fine];
    let counted = counted.map(|severity| format!("{} {severity}", count(severity)));
    let _ = writeln!(text, "{} checks: {}", findings.len(), counted.join(", "));
    text
}
