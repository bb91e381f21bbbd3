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
    /// A queue lasts as long as the heartbeat of the waiter that claimed last, whatever other waiters stand in it.
    ShortensQueues,
    /// A call that has found only dead waiters says that the queue is empty.
    StopsAtDeadWaiters,
    /// The server keeps locks much longer than asked.
    NeverForgets,
    /// The clients' clocks are far too slow, and so their deadlines too late.
    SlowClocks,
    /// The server loses its data, and there is no restart guard.
    LosesDataUnguarded,
    /// The clock of a Redlock node leaps, and there is no restart guard to put it into quarantine.
    LeapsUnguarded,
    /// A Redlock node never sets a lock again that contenders have wanted there since it was lost.
    NeverHeals,
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
            Broken::ShortensQueues => &[("if left < heartbeat then", "if true then")],
            Broken::StopsAtDeadWaiters => {
                &[("MOST_LET_IN = 1024, 128, 32", "MOST_LET_IN = 16, 128, 32"), ("if is_cut then", "if false then")]
            }
            Broken::NeverForgets => &[("'PX', lease_ms)", "'PX', lease_ms * 1000)")],
            Broken::NeverHeals => &[("and string.format('%.0f', last) ~= known_ballot then", "then")],
            Broken::SlowClocks | Broken::LosesDataUnguarded | Broken::LeapsUnguarded | Broken::OpenFence => &[],
        };
        changes.iter().fold(script.to_owned(), |script, (is, becomes)| script.replace(is, becomes))
    }
}
