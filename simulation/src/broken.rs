//! Worlds with one deliberate defect, to show that each rule of the judge can fail.

/// The defect of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// A release does not check the owner of the lock.
    ReleasesWithoutOwnerCheck,
    /// The server's lease is half as long as the holder believes.
    HalvesLeases,
    /// Tokens do not start at the clock, so that they start again after a loss of data.
    CountsFromOne,
    /// The queue is served from its end.
    ServesLastFirst,
    /// A queue expires with the heartbeat of the waiter that claimed last, although other waiters have longer ones.
    ShortensQueues,
    /// A call that finds only dead waiters reports an empty queue.
    StopsAtDeadWaiters,
    /// The server keeps locks much longer than requested.
    NeverForgets,
    /// The clients' clocks are far too slow, so their deadlines are too late.
    SlowClocks,
    /// The server loses its data, without a restart guard.
    LosesDataUnguarded,
    /// The clock of a Redlock node jumps, without a restart guard that quarantines the node.
    LeapsUnguarded,
    /// A Redlock node never restores a lost lock that contenders have requested there since.
    NeverHeals,
    /// The protected resource does not check tokens.
    OpenFence,
}

impl Broken {
    /// Returns the script with the defect.
    pub(crate) fn spoil(self, script: &str) -> String {
        let changes: &[(&str, &str)] = match self {
            Broken::ReleasesWithoutOwnerCheck => &[
                ("if held == attempt .. ' ' then", "if held ~= '' then"),
                ("if call('GETRANGE', K[i], '0', '32') ~= A[i + 1] then", "if false then"),
            ],
            Broken::HalvesLeases => &[("'PX', lease_ms)", "'PX', math.floor(lease_ms / 2))")],
            Broken::CountsFromOne => &[
                ("local token, digits = now, now_digits", "local token, digits = 1, '1'"),
                ("'SET', fence, now_digits, 'KEEPTTL', 'GET'", "'GET', fence"),
                ("number and number >= now then", "number then"),
                // Leaves the token to the full script.
                ("call('SET', fence, now, 'KEEPTTL', 'GET')", "{ err = '' }"),
            ],
            Broken::ServesLastFirst => &[("'NX', ticket, attempt", "'NX', '-' .. ticket, attempt")],
            Broken::ShortensQueues => &[
                ("if left < heartbeat then", "if true then"),
                ("elseif left < heartbeat or left_of_queue < heartbeat then", "elseif true then"),
                ("LONGEST_HEARTBEAT)", "heartbeat)"),
            ],
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
