//! What a run was about, and how it ended, from what it printed.

/// The commands that can be recorded.
pub(super) const RECORDED: [&str; 6] = ["chaos", "simulate", "models", "soak", "fuzz", "matrix"];

/// Returns what a command line is about; the row of an earlier run of the same is replaced. `None`: it cannot be recorded.
pub(super) fn subject(words: &[&str]) -> Option<String> {
    let (command, rest) = words.split_first()?;
    if !RECORDED.contains(command) {
        return None;
    }
    let mut subject = (*command).to_owned();
    if let Some(first) = rest.first().filter(|first| !first.starts_with('-')) {
        subject += &format!(" {first}");
    }
    if let Some(at) = rest.iter().position(|word| *word == "--server") {
        subject += &format!(" on {}", rest.get(at + 1)?);
    }
    Some(subject)
}

/// Returns the result in one phrase. `None`: the command printed none, so it did not come to its end.
pub(super) fn result(command: &str, lines: &[String]) -> Option<String> {
    match command {
        "chaos" => chaos(lines),
        "simulate" => simulation(lines),
        "models" => models(lines),
        "soak" => soak(lines),
        "fuzz" => tests(lines),
        _ => versions(lines),
    }
}

fn chaos(lines: &[String]) -> Option<String> {
    let figure = |name: &str| {
        let values = lines
            .iter()
            .filter_map(|line| line.trim().strip_prefix(name)?.split_whitespace().last()?.parse::<u64>().ok());
        values.sum::<u64>()
    };
    let verdict = lines.iter().rev().find(|line| line.contains("broken"))?;
    let verdict = verdict.split(';').next()?;
    let (granted, faults, refused) = (figure("granted"), figure("fault:"), figure("stale writes refused by the fence"));
    Some(format!("{granted} grants, {faults} faults, {refused} stale writes refused; {verdict}"))
}

fn simulation(lines: &[String]) -> Option<String> {
    let seeds = lines.iter().find(|line| line.contains(" seeds in "))?.split(" in ").next()?;
    let figures = lines.iter().find(|line| line.contains(" locks requested, "))?;
    let granted = figures.split(", ").find(|part| part.ends_with(" granted"))?;
    let faults = figures.split(", ").find(|part| part.ends_with(" faults"))?;
    let findings = lines.iter().find(|line| line.ends_with(" seeds with findings"))?.rsplit(", ").next()?;
    Some(format!("{seeds}, {granted}, {faults}; {findings}"))
}

fn models(lines: &[String]) -> Option<String> {
    let states = |line: &String| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "states,")?;
        words.get(at.checked_sub(1)?)?.parse::<u64>().ok()
    };
    let explored: Vec<u64> = lines.iter().filter_map(states).collect();
    let passed = tests(lines)?;
    let (models, states) = (explored.len(), explored.iter().sum::<u64>());
    Some(format!("{models} models explored to the end, {states} states; {passed}"))
}

fn soak(lines: &[String]) -> Option<String> {
    let verdict = lines.iter().rev().find(|line| *line == "flat" || line.starts_with("GROWS"))?;
    let last = lines.iter().rev().find_map(|line| line.split_whitespace().next()?.parse::<u64>().ok())?;
    Some(format!("{last} s, {verdict}"))
}

/// Returns the sum of the tests that the runner counted.
fn tests(lines: &[String]) -> Option<String> {
    let counts = lines.iter().filter_map(|line| crate::test::counts::of_libtest(line));
    let total = counts.reduce(|mut sum, one| {
        sum += one;
        sum
    })?;
    Some(format!("{} tests passed, {} failed", total.passed, total.failed))
}

/// Returns the sum over the versions: `[1/12] redis-7.0: 1230 passed, 0 failed, 33 s`.
fn versions(lines: &[String]) -> Option<String> {
    let (mut versions, mut passed, mut failed) = (0, 0, 0);
    for line in lines.iter().filter(|line| line.starts_with('[')) {
        let count = |word: &str| {
            let before = line.split(word).next().filter(|before| before.len() < line.len())?;
            before.rsplit(' ').next()?.parse::<u64>().ok()
        };
        if let (Some(good), Some(bad)) = (count(" passed"), count(" failed")) {
            (versions, passed, failed) = (versions + 1, passed + good, failed + bad);
        }
    }
    (versions > 0).then(|| format!("{versions} versions, {passed} tests passed, {failed} failed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(command: &str, text: &str) -> Option<String> {
        result(command, &text.lines().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_run_is_about_its_engine_and_its_server() {
        assert_eq!(subject(&["chaos", "redis", "--seconds", "60"]).as_deref(), Some("chaos redis"));
        assert_eq!(
            subject(&["chaos", "redis", "--server", "valkey-9.1"]).as_deref(),
            Some("chaos redis on valkey-9.1")
        );
        assert_eq!(subject(&["simulate", "--seeds", "9"]).as_deref(), Some("simulate"));
        assert_eq!(subject(&["models"]).as_deref(), Some("models"));
        assert_eq!(subject(&["tidy"]), None);
        assert_eq!(subject(&[]), None);
    }

    #[test]
    fn the_result_is_what_the_command_printed() {
        let chaos = "chaos redis, 9 s, seed 1\n  locks requested   70\n  granted    60\n  fault: kill a   2\n  fault: freeze   3\n  \
                     stale writes refused by the fence   4\nno promise was broken\n";
        assert_eq!(
            of("chaos", chaos).as_deref(),
            Some("60 grants, 5 faults, 4 stale writes refused; no promise was broken")
        );
        let broken = chaos.replace("no promise was broken", "BROKEN: x\n1 broken; again: cargo xtask chaos redis");
        assert!(of("chaos", &broken).unwrap().ends_with("; 1 broken"));
        let simulated = "100 seeds in 2.0 s, 50 a second\n7 locks requested, 6 granted, 5 waits judged for their order, 4 faults\n\
                         3 stale writes refused by the fence, 0 seeds with findings\n";
        assert_eq!(of("simulate", simulated).as_deref(), Some("100 seeds, 6 granted, 4 faults; 0 seeds with findings"));
        let models = "test a ... 12 states, 30 steps\nok\ntest result: ok. 2 passed; 0 failed; 0 ignored; x\n5 states, 6 steps\n\
                      test result: ok. 1 passed; 0 failed; 0 ignored; x\n";
        let expected = "2 models explored to the end, 17 states; 3 tests passed, 0 failed";
        assert_eq!(of("models", models).as_deref(), Some(expected));
        assert_eq!(of("soak", "  s  a\n  10  7\n  1800  7\nflat\n").as_deref(), Some("1800 s, flat"));
        let versions = "[1/2] a …\n[1/2] a: 10 passed, 0 failed, 3 s\n[2/2] b: 5 passed, 1 failed, 2 skipped, 3 s\n";
        assert_eq!(of("matrix", versions).as_deref(), Some("2 versions, 15 tests passed, 1 failed"));
    }

    #[test]
    fn a_command_that_died_has_no_result() {
        for command in RECORDED {
            assert_eq!(of(command, "error: could not compile\n"), None, "{command}");
        }
    }
}
