//! Parses the counts that the test runners print.

use crate::tally::Tally;

/// Parses nextest's line `Summary [ 0.2s] 12 tests run: 10 passed (1 slow), 2 failed, 3 skipped`.
pub(crate) fn of_nextest(line: &str) -> Option<Tally> {
    let (head, numbers) = line.split_once(" run: ")?;
    if !head.trim_start().starts_with("Summary [") {
        return None;
    }
    let mut tally = Tally::default();
    for part in without_remarks(numbers).split(',') {
        let (number, what) = part.trim().split_once(' ')?;
        let number: usize = number.parse().ok()?;
        match what.trim() {
            "passed" => tally.passed += number,
            "skipped" => tally.skipped += number,
            // "failed", "timed out", "exec failed" and any later categories.
            _ => tally.failed += number,
        }
    }
    Some(tally)
}

/// Parses how many tests passed only when they were run again, from nextest's line
/// `Summary [ 0.2s] 12 tests run: 12 passed (1 slow, 2 flaky), 3 skipped`.
pub(super) fn flaky(line: &str) -> Option<usize> {
    of_nextest(line)?;
    let (before, _) = line.split_once(" flaky")?;
    before.rsplit([' ', '(']).next()?.parse().ok()
}

/// Parses libtest's line `test result: ok. 1 passed; 0 failed; 0 ignored; …; 2 filtered out; finished in 0.00s`.
pub(crate) fn of_libtest(line: &str) -> Option<Tally> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut tally = Tally::default();
    for part in numbers.split("; ") {
        let Some((Ok(number), what)) = part.trim().split_once(' ').map(|(n, what)| (n.parse::<usize>(), what)) else {
            continue;
        };
        match what {
            "passed" => tally.passed += number,
            "failed" => tally.failed += number,
            "ignored" | "filtered out" => tally.skipped += number,
            _ => {}
        }
    }
    Some(tally)
}

/// Removes text in parentheses, which repeats what is already counted.
fn without_remarks(text: &str) -> String {
    let mut depth = 0;
    let outside = |c: &char| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => return depth == 0,
        }
        false
    };
    text.chars().filter(outside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nextest_summaries_are_understood() {
        let cases = [
            ("     Summary [   0.207s] 12 tests run: 12 passed, 0 skipped", (12, 0, 0)),
            ("     Summary [   1.0s] 1 test run: 1 passed, 3 skipped", (1, 0, 3)),
            (
                "     Summary [  61.2s] 9 tests run: 5 passed (1 slow, 2 leaky), 2 failed, 2 timed out, 1 skipped",
                (5, 4, 1),
            ),
            ("     Summary [   1.0s] 3/9 tests run: 2 passed, 1 exec failed, 0 skipped", (2, 1, 0)),
        ];
        for (line, (passed, failed, skipped)) in cases {
            assert_eq!(of_nextest(line), Some(Tally { passed, failed, skipped }), "{line}");
        }
    }

    #[test]
    fn flaky_tests_are_counted() {
        let line = |remarks: &str| format!("     Summary [   1.0s] 9 tests run: 9 passed{remarks}, 3 skipped");
        let cases =
            [("", None), (" (1 slow)", None), (" (2 flaky)", Some(2)), (" (1 slow, 12 flaky, 1 leaky)", Some(12))];
        for (remarks, count) in cases {
            assert_eq!(flaky(&line(remarks)), count, "{remarks}");
        }
        assert_eq!(flaky("   FLAKY 2/2 [   0.1s] 1 flaky"), None);
    }

    #[test]
    fn libtest_results_are_understood() {
        let line = "test result: FAILED. 7 passed; 2 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.00s";
        assert_eq!(of_libtest(line), Some(Tally { passed: 7, failed: 2, skipped: 5 }));
    }

    #[test]
    fn other_lines_count_nothing() {
        for line in ["", "running 1 test", "test a ... ok", "PASS [ 0.1s] tests run: 1 passed", "test result: odd"] {
            assert_eq!((of_nextest(line), of_libtest(line)), (None, None), "{line}");
        }
    }
}
