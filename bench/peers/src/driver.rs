//! The driver: runs all scenarios and writes what it measured.
//!
//! Each line of the file is a scenario, a contestant, the round, and `name=value` pairs. Lines that begin with `#` name
//! the versions of the servers and the contestants that failed.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::contestants::{Engine, Programs, SCENARIOS, Scenario, language};
use crate::last_holder;
use crate::measure::{Extent, measure};
use crate::servers::Servers;

const USAGE: &str = "usage: distlock-peers --out FILE [--python PROGRAM] [--node DIRECTORY] [--go PROGRAM] [--short] \
                     [SCENARIO…]";

struct Plan {
    out: PathBuf,
    programs: Programs,
    extent: Extent,
    scenarios: Vec<&'static Scenario>,
}

pub(crate) fn run(words: &[&str]) -> ExitCode {
    let Some(plan) = parse(words) else {
        let names: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        eprintln!("{USAGE}\nscenarios: {}", names.join(", "));
        return ExitCode::from(64);
    };
    match plan.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", plan.out.display());
            ExitCode::FAILURE
        }
    }
}

fn parse(words: &[&str]) -> Option<Plan> {
    let mut plan =
        Plan { out: PathBuf::new(), programs: Programs::default(), extent: Extent::WHOLE, scenarios: Vec::new() };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "--out" => plan.out = words.next()?.into(),
            "--python" => plan.programs.python = Some(words.next()?.into()),
            "--node" => plan.programs.node = Some(words.next()?.into()),
            "--go" => plan.programs.go = Some(words.next()?.into()),
            "--short" => plan.extent = Extent::SHORT,
            name => {
                let before = plan.scenarios.len();
                plan.scenarios.extend(SCENARIOS.iter().filter(|scenario| scenario.name.starts_with(name)));
                (plan.scenarios.len() > before).then_some(())?;
            }
        }
    }
    if plan.scenarios.is_empty() {
        plan.scenarios.extend(&SCENARIOS);
    }
    (!plan.out.as_os_str().is_empty()).then_some(plan)
}

impl Plan {
    fn run(&self) -> io::Result<()> {
        let mut out = File::create(&self.out)?;
        let mut servers: Option<(Engine, Servers)> = None;
        for (number, scenario) in (1..).zip(&self.scenarios) {
            if servers.as_ref().is_none_or(|(engine, _)| *engine != scenario.engine) {
                // The old ones end before new ones start.
                drop(servers.take());
                let started = Servers::start(scenario.engine);
                writeln!(out, "# server {}", started.version())?;
                servers = Some((scenario.engine, started));
            }
            let (_, servers) = servers.as_ref().expect("started above");
            println!("[{number}/{}] {}", self.scenarios.len(), scenario.name);
            self.run_scenario(scenario, servers, &mut out)?;
        }
        // Only scenarios with a shared lock made it.
        let _ = std::fs::remove_file(last_holder::path());
        Ok(())
    }

    /// Runs the rounds. In each, every contestant takes its turn, so that a slow moment of the machine meets all.
    fn run_scenario(&self, scenario: &Scenario, servers: &Servers, out: &mut File) -> io::Result<()> {
        let mut failed = HashSet::new();
        for round in 1..=self.extent.rounds {
            for &contestant in scenario.contestants {
                if failed.contains(contestant) || !self.programs.has(language(contestant)) {
                    continue;
                }
                match measure(contestant, scenario.load, servers, &self.programs, &self.extent) {
                    Ok(found) => {
                        println!("  round {round}, {contestant}: {found}");
                        writeln!(out, "{} {contestant} {round} {found}", scenario.name)?;
                    }
                    Err(problem) => {
                        println!("  round {round}, {contestant} failed: {problem}");
                        writeln!(out, "# failed {} {contestant} {problem}", scenario.name)?;
                        failed.insert(contestant);
                    }
                }
            }
        }
        Ok(())
    }
}
