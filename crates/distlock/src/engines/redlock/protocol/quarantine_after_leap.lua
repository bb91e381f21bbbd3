-- KEYS: node; ARGV: nonce, most_us, after_us; reply: nonce, now_us
-- The clock leapt forward by `most_us` at the most, so leases ended early: the node does not vote until the last of them would
-- have ended. Whoever was here after the leap, which is whatever was stamped later than `after_us`, has done it already.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local seen = redis.pcall('GET', KEYS[1])
if type(seen) == 'table' then
  return seen
end
local id, born, leapt, until_us, horizon, longest = read_note(seen, now)
-- A node without a note does not vote anyway.
if id and not (leapt > tonumber(ARGV[3]) and leapt <= now) then
  local last = math.min(math.max(until_us, horizon) + ARGV[2], now + longest)
  redis.call('SET', KEYS[1], string.format('%s %.0f %.0f %.0f %.0f %.0f', id, born, now, last, last, longest))
end
return { ARGV[1], now }
