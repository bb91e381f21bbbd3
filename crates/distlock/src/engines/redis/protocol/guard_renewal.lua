-- Notes in the canary how long leases are. KEYS, ARGV: as in guard_leases.lua; reply: none.
local guard_clock = redis.call('TIME')
note_leases(guard_clock[1] * 1000 + math.floor(guard_clock[2] / 1000))
