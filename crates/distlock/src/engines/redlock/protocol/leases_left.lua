-- KEYS: node's note; ARGV: nonce; reply: nonce, milliseconds until the last lease that this node knows of has ended (-1: it has no note)
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local note = redis.pcall('GET', KEYS[1])
local run_id, _, _, quarantine_end, leases_end = read_note(type(note) == 'string' and note, now)
if not run_id then
  return { ARGV[1], -1 }
end
-- A node in quarantine may have lost leases. They end with the quarantine at the latest.
return { ARGV[1], math.max(0, math.ceil((math.max(quarantine_end, leases_end) - now) / 1000)) }
