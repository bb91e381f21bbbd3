-- KEYS: node; ARGV: nonce, quarantine_ms; reply: nonce, milliseconds until it votes
-- A node without a past, or with that of another life of the server, begins anew: `run_id born_us leapt_us until_us horizon_us`, where `leapt_us` is when its clock was last seen to have leapt.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local seen = redis.pcall('GET', KEYS[1])
if type(seen) == 'table' then
  return seen
end
local id, until_us = string.match(seen or '', '^(%x+) %d+ %d+ (%d+) %d+$')
if id ~= run_id then
  -- From now on, though the restart may have been a while ago: the clock may have leapt since.
  until_us = now + ARGV[2] * 1000
  redis.call('SET', KEYS[1], string.format('%s %.0f 0 %.0f %.0f', run_id, now, until_us, until_us))
end
return { ARGV[1], math.max(0, math.ceil((tonumber(until_us) - now) / 1000)) }
