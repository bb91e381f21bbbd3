-- KEYS: node; ARGV: nonce; reply: nonce, milliseconds until the last lease that this node knows of has ended (-1: it knows of none)
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local seen = redis.pcall('GET', KEYS[1])
local until_us, horizon_us
if type(seen) == 'string' then
  until_us, horizon_us = string.match(seen, '^%x+ %d+ %d+ (%d+) (%d+)$')
end
if not horizon_us then
  return { ARGV[1], -1 }
end
-- While it is in quarantine it does not know better than those who put it there.
local last = math.max(tonumber(until_us), tonumber(horizon_us))
return { ARGV[1], math.max(0, math.ceil((last - now) / 1000)) }
