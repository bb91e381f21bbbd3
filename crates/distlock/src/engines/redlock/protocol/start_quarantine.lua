-- KEYS: node's note; ARGV: nonce, quarantine_ms; reply: nonce, milliseconds until the node votes
-- A node without a note, or with the note of an earlier run of the server, gets a new one.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local server_run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local note = redis.pcall('GET', KEYS[1])
if type(note) == 'table' then
  return note
end
local run_id, _, _, quarantine_end = read_note(note, now)
if run_id ~= server_run_id then
  -- From now on, though the restart may have been a while ago: the clock may have leapt since.
  quarantine_end = now + ARGV[2] * 1000
  write_note(KEYS[1], server_run_id, now, now, quarantine_end, quarantine_end, quarantine_end - now)
end
return { ARGV[1], math.max(0, math.ceil((quarantine_end - now) / 1000)) }
