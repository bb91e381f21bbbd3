-- KEYS: node; ARGV: nonce, quarantine_ms; reply: nonce, milliseconds until it votes
-- A node without a past, or with that of another life of the server, begins anew.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local seen = redis.pcall('GET', KEYS[1])
if type(seen) == 'table' then
  return seen
end
local id, _, _, until_us = read_note(seen, now)
if id ~= run_id then
  -- From now on, though the restart may have been a while ago: the clock may have leapt since.
  until_us = now + ARGV[2] * 1000
  redis.call('SET', KEYS[1], string.format('%s %.0f %.0f %.0f %.0f %.0f', run_id, now, now, until_us, until_us, until_us - now))
end
return { ARGV[1], math.max(0, math.ceil((until_us - now) / 1000)) }
