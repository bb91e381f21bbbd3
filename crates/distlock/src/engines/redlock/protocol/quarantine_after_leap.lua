-- KEYS: node's note; ARGV: nonce, most_us, after_us; reply: nonce, now_us
-- The clock leapt forward by `most_us` at the most, so leases ended early: the node does not vote until the last of them would
-- have ended. If the note was written for a leap later than `after_us`, another client has done so already.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local note = redis.pcall('GET', KEYS[1])
if type(note) == 'table' then
  return note
end
local run_id, born, leapt, quarantine_end, leases_end, max_lease = read_note(note, now)
-- A node without a note does not vote anyway.
if run_id and not (leapt > tonumber(ARGV[3]) and leapt <= now) then
  local last_end = math.min(math.max(quarantine_end, leases_end) + ARGV[2], now + max_lease)
  write_note(KEYS[1], run_id, born, now, last_end, last_end, max_lease)
end
return { ARGV[1], now }
