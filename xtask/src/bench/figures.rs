//! The results of `bench peers`: the lines of the driver, by scenario and contestant.
//!
//! A line is a scenario, a contestant, a round and `name=value` pairs. A line that begins with `#` is a remark: `run`,
//! `machine`, `server`, `skipped` or `failed`.

use std::collections::BTreeMap;

use super::median;

/// The numbers of one round.
pub(super) type Round = BTreeMap<String, f64>;

/// The rounds of one contestant in one scenario.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    pub(super) scenario: String,
    pub(super) contestant: String,
    rounds: Vec<Round>,
}

impl Figure {
    /// Returns the median over the rounds of what `value` computes for one of them; `None` where a number is missing.
    pub(super) fn median(&self, value: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        median(self.rounds.iter().map(value).collect::<Option<Vec<f64>>>()?)
    }

    /// Returns the median of `name`.
    pub(super) fn of(&self, name: &str) -> Option<f64> {
        self.median(|round| round.get(name).copied())
    }

    /// Returns the median of `name` divided by `by`, round by round.
    pub(super) fn per(&self, name: &str, by: &str) -> Option<f64> {
        self.median(|round| Some(round.get(name)? / round.get(by).filter(|by| **by > 0.0)?))
    }

    /// Returns the median ratio of what `value` computes to the same of `floor`, both in the same round: a slow moment of
    /// the machine meets both.
    pub(super) fn ratio_to(&self, floor: &Figure, value: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        let ratio = |(own, base): (&Round, &Round)| Some(value(own)? / value(base).filter(|base| *base > 0.0)?);
        median(self.rounds.iter().zip(&floor.rounds).map(ratio).collect::<Option<Vec<f64>>>()?)
    }

    /// Returns the smallest and the largest value of `name`.
    pub(super) fn range(&self, name: &str) -> Option<(f64, f64)> {
        let all: Vec<f64> = self.rounds.iter().map(|round| round.get(name).copied()).collect::<Option<_>>()?;
        Some((all.iter().copied().fold(f64::INFINITY, f64::min), all.iter().copied().fold(f64::NEG_INFINITY, f64::max)))
    }

    pub(super) fn rounds(&self) -> usize {
        self.rounds.len()
    }

    /// Whether it is a lower bound and not a library.
    pub(super) fn is_floor(&self) -> bool {
        self.contestant.starts_with("raw-") || self.contestant == "etcd-queue"
    }

    pub(super) fn is_ours(&self) -> bool {
        self.contestant.starts_with("distlock")
    }

    /// Returns the contestant's name without the engine, which the scenario names.
    pub(super) fn label(&self) -> &str {
        match self.contestant.as_str() {
            "rslock-redlock" => "rslock",
            _ if self.is_ours() => "distlock",
            name => name,
        }
    }
}

/// All results of a run.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Results {
    pub(super) figures: Vec<Figure>,
    /// The remarks, each once, as kind and text.
    pub(super) remarks: Vec<(String, String)>,
}

impl Results {
    /// Reads the driver's lines.
    pub(super) fn parse(text: &str) -> Results {
        let mut results = Results::default();
        for line in text.lines() {
            match line.strip_prefix("# ") {
                Some(remark) => results.remark(remark),
                None => results.line(line),
            }
        }
        results
    }

    fn remark(&mut self, remark: &str) {
        let (kind, text) = remark.split_once(' ').unwrap_or((remark, ""));
        let remark = (kind.to_owned(), text.to_owned());
        if !self.remarks.contains(&remark) {
            self.remarks.push(remark);
        }
    }

    fn line(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let (Some(scenario), Some(contestant), Some(_round)) = (words.next(), words.next(), words.next()) else {
            return;
        };
        let pair = |word: &str| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let round: Round = words.filter_map(pair).collect();
        let known = self.figures.iter_mut().find(|it| it.scenario == scenario && it.contestant == contestant);
        match known {
            Some(figure) => figure.rounds.push(round),
            None => self.figures.push(Figure {
                scenario: scenario.to_owned(),
                contestant: contestant.to_owned(),
                rounds: vec![round],
            }),
        }
    }

    /// Returns the contestants of a scenario in the order of the driver.
    pub(super) fn of(&self, scenario: &str) -> Vec<&Figure> {
        self.figures.iter().filter(|figure| figure.scenario == scenario).collect()
    }

    /// Returns the texts of the remarks of a kind.
    pub(super) fn remarks(&self, kind: &str) -> Vec<&str> {
        self.remarks.iter().filter(|(own, _)| own == kind).map(|(_, text)| text.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# server Redis 7.0.15\n\
        redis/alone raw-redis 1 ops=100 seconds=2 p50_us=50\n\
        redis/alone distlock 1 ops=80 seconds=2 p50_us=60\n\
        redis/alone distlock 2 ops=60 seconds=2 p50_us=90\n\
        redis/alone distlock 3 ops=70 seconds=2 p50_us=70\n\
        # server Redis 7.0.15\n\
        not a line\n";

    #[test]
    fn rounds_are_gathered_and_their_median_counts() {
        let results = Results::parse(TEXT);
        let figures = results.of("redis/alone");
        assert_eq!(figures.iter().map(|figure| figure.label()).collect::<Vec<_>>(), ["raw-redis", "distlock"]);
        let ours = figures[1];
        assert_eq!((ours.rounds(), ours.of("p50_us"), ours.per("ops", "seconds")), (3, Some(70.0), Some(35.0)));
        assert_eq!(ours.range("ops"), Some((60.0, 80.0)));
        assert_eq!(ours.of("late_ms"), None, "a number that was not measured");
        assert!(ours.is_ours() && figures[0].is_floor() && !figures[1].is_floor());
        assert_eq!(results.remarks("server"), ["Redis 7.0.15"], "once");
    }

    #[test]
    fn ratios_are_those_within_a_round() {
        let rounds = |name: &str, rates: [u32; 3]| -> String {
            rates.iter().enumerate().map(|(round, rate)| format!("redis/tasks {name} {round} rate={rate}\n")).collect()
        };
        // The machine was slow in the second round, and the ratio was the same.
        let text = rounds("raw-redis", [100, 20, 60]) + &rounds("distlock", [50, 10, 45]);
        let results = Results::parse(&text);
        let [floor, ours] = results.of("redis/tasks")[..] else { panic!("two contestants") };
        assert_eq!(ours.ratio_to(floor, |round| round.get("rate").copied()), Some(0.5));
        assert_eq!(ours.ratio_to(floor, |round| round.get("ops").copied()), None);
    }

    #[test]
    fn the_engine_is_not_part_of_a_label() {
        let results = Results::parse(
            "redlock/alone rslock-redlock 1 ops=1\nredlock/alone distlock-redlock 1 ops=1\netcd/alone etcd-queue 1 ops=1\n",
        );
        let labels: Vec<&str> = results.figures.iter().map(Figure::label).collect();
        assert_eq!(labels, ["rslock", "distlock", "etcd-queue"]);
    }
}
