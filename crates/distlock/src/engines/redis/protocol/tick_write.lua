-- KEYS: lock, ticks; ARGV: nonce, attempt, tick, forget_ms, 'd' (done) or 's' (started), note, most notes; reply: nonce, 1 (stored), 0 (not ours), 2 (too many notes) or 4 (stored, but forgotten already by this server's clock), or 3 and the type when the key is not ours
-- The ticks are a hash: tick -> 'FORGET_MS d|s NOTE'. It expires with the note that is forgotten last.
local kind = redis.call('TYPE', KEYS[2]).ok
if kind ~= 'none' and kind ~= 'hash' then
  return { ARGV[1], 3, kind }
end
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local all = redis.call('HGETALL', KEYS[2])
local is_stored = tonumber(ARGV[4]) > now_ms and 1 or 4
local note = ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. ARGV[6]
local stored, live, last, forgotten = nil, 0, tonumber(ARGV[4]), {}
for i = 1, #all, 2 do
  local forget_ms = tonumber(string.match(all[i + 1], '^(%d+) ') or 0)
  if all[i] == ARGV[3] then
    if all[i + 1] == note then
      return { ARGV[1], is_stored }
    end
    stored = forget_ms > now_ms and all[i + 1] or nil
  elseif forget_ms > now_ms then
    live, last = live + 1, math.max(last, forget_ms)
  else
    forgotten[#forgotten + 1] = all[i]
  end
end
local held = redis.pcall('GETRANGE', KEYS[1], '0', '31')
if type(held) == 'table' and not string.find(held.err, 'WRONGTYPE', 1, true) then
  -- Raises the refusal as the server words it: a missing right says nothing about whose the lock is.
  held = redis.call('GETRANGE', KEYS[1], '0', '31')
end
-- A tick that is done stays done.
if held ~= ARGV[2] or stored and ARGV[5] ~= 'd' and string.match(stored, '^%d+ d ') then
  return { ARGV[1], 0 }
elseif not stored and live >= tonumber(ARGV[7]) then
  return { ARGV[1], 2 }
end
redis.call('HSET', KEYS[2], ARGV[3], note)
for _, tick in ipairs(forgotten) do
  redis.call('HDEL', KEYS[2], tick)
end
redis.call('PEXPIRE', KEYS[2], string.format('%.0f', math.max(1, last - now_ms)))
return { ARGV[1], is_stored }
