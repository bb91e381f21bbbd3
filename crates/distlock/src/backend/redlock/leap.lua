-- KEYS: node; ARGV: nonce, most_us, after_us; reply: nonce, now_us
-- The clock leapt forward by `most_us` at the most, so leases ended early: the node does not vote until the last of them would
-- have ended. Whoever was here after the leap, which is whatever was stamped later than `after_us`, has done it already.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local seen = redis.pcall('GET', KEYS[1])
if type(seen) == 'table' then
  return seen
end
local id, born, leapt, until_us, horizon = string.match(seen or '', '^(%x+) (%d+) (%d+) (%d+) (%d+)$')
-- A node without a note does not vote anyway.
if id and not (tonumber(leapt) > tonumber(ARGV[3]) and tonumber(leapt) <= now) then
  local last = math.max(tonumber(until_us), tonumber(horizon)) + ARGV[2]
  redis.call('SET', KEYS[1], string.format('%s %s %.0f %.0f %.0f', id, born, now, last, last))
end
return { ARGV[1], now }
