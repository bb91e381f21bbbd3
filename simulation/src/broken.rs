//! Worlds that are wrong on purpose, to show that each rule of the judge can fail.

/// What is wrong with a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// A release does not look whose the lock is.
    ReleasesAnybodys,
    /// The server's lease is half as long as the holder believes.
    HalvesLeases,
    /// Tokens do not begin at the clock, so that they begin again when the server has lost its data.
    CountsFromOne,
    /// The queue is served from its end.
    ServesLastFirst,
    /// The server keeps locks much longer than asked.
    NeverForgets,
    /// The clients' clocks are far too slow, and so their deadlines too late.
    SlowClocks,
    /// The server loses its data, and there is no restart guard.
    LosesDataUnguarded,
    /// The clock of a Redlock node leaps, and there is no restart guard to put it into quarantine.
    LeapsUnguarded,
    /// The protected resource does not look at tokens.
    OpenFence,
}

impl Broken {
    /// The script as the server runs it.
    pub(crate) fn spoil(self, script: &str) -> String {
        let changes: &[(&str, &str)] = match self {
            Broken::ReleasesAnybodys => &[("if held == attempt .. ' ' then", "if held ~= '' then")],
            Broken::HalvesLeases => &[("'PX', lease_ms)", "'PX', math.floor(lease_ms / 2))")],
            Broken::CountsFromOne => &[
                ("local token, digits = now, now_digits", "local token, digits = 1, '1'"),
                ("'SET', fence, now_digits, 'KEEPTTL', 'GET'", "'GET', fence"),
                ("number and number >= now then", "number then"),
            ],
            Broken::ServesLastFirst => &[("'NX', ticket, attempt", "'NX', '-' .. ticket, attempt")],
            Broken::NeverForgets => &[("'PX', lease_ms)", "'PX', lease_ms * 1000)")],
            Broken::SlowClocks | Broken::LosesDataUnguarded | Broken::LeapsUnguarded | Broken::OpenFence => &[],
        };
        changes.iter().fold(script.to_owned(), |script, (is, becomes)| script.replace(is, becomes))
    }
}
