-- KEYS: ticks; ARGV: nonce, tick ('': all of them); reply: nonce, now_ms, the notes that are not forgotten
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local found
if ARGV[2] == '' then
  found = redis.pcall('HGETALL', KEYS[1])
else
  found = { ARGV[2], redis.pcall('HGET', KEYS[1], ARGV[2]) }
  if type(found[2]) == 'table' then
    found = found[2]
  end
end
if found.err then
  return found
end
local reply = { ARGV[1], now_ms }
for i = 2, #found, 2 do
  local forget_ms, note = string.match(found[i] or '', '^(%d+) [ds] ({.*)$')
  -- A longer one is not ours.
  if forget_ms and tonumber(forget_ms) > now_ms and #note <= 4096 then
    reply[#reply + 1] = note
  end
end
return reply
