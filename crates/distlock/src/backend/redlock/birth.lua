-- KEYS: node; ARGV: nonce, quarantine_ms; reply: nonce, milliseconds until it votes
-- A node without a past, or with that of another life of the server, begins anew: `run_id born_us until_us horizon_us`.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local info = redis.call('INFO', 'server')
local run_id = string.match(info, 'run_id:(%x+)')
local seen = redis.pcall('GET', KEYS[1])
if type(seen) == 'table' then
  return seen
end
local id, until_us = string.match(seen or '', '^(%x+) %d+ (%d+) %d+$')
if id ~= run_id then
  local left_ms = tonumber(ARGV[2])
  if id then
    -- Its data survived, so it was a restart and no flush: whatever was forgotten is older than that.
    left_ms = math.max(0, left_ms - 1000 * tonumber(string.match(info, 'uptime_in_seconds:(%d+)')))
  end
  until_us = now + left_ms * 1000
  redis.call('SET', KEYS[1], string.format('%s %.0f %.0f %.0f', run_id, now, until_us, until_us))
end
return { ARGV[1], math.max(0, math.ceil((tonumber(until_us) - now) / 1000)) }
