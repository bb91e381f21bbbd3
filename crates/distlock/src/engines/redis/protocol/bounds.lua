-- Lengths of time that several scripts share, in ms: as numbers, and as digits for commands. KEYS, ARGV: those of the script that follows; reply: none.
-- A grant that was handed over lasts this long at first, so that a frozen process costs the other waiters little.
local FIRST_LEASE_MS, FIRST_LEASE = 1000, '1000'
-- A waiter keeps its place for its ttl, within these bounds; `heartbeat` in time.rs. No key of a queue lasts longer than the longest.
local SHORTEST_HEARTBEAT_MS, LONGEST_HEARTBEAT_MS, LONGEST_HEARTBEAT = 3000, 30000, '30000'
