-- KEYS: node; ARGV: nonce; reply: nonce, milliseconds until the last lease that this node knows of has ended (-1: it knows of none)
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local seen = redis.pcall('GET', KEYS[1])
local id, _, _, until_us, horizon = read_note(type(seen) == 'string' and seen, now)
if not id then
  return { ARGV[1], -1 }
end
-- While it is in quarantine it does not know better than those who put it there.
return { ARGV[1], math.max(0, math.ceil((math.max(until_us, horizon) - now) / 1000)) }
