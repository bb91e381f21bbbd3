-- KEYS: lock, queue, waiters, holders, leases; ARGV: nonce, most holders and waiters; reply: nonce, now_us, type, value, pttl_ms, number of a group's holders, an entry and pttl_ms of each, then an entry of each waiter that lives
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local held_type = redis.call('TYPE', KEYS[1]).ok
-- Not all of it: a foreign key may hold megabytes. A value of ours is shorter.
local MOST_BYTES = 4096
local value = held_type == 'string' and redis.call('GETRANGE', KEYS[1], 0, MOST_BYTES - 1) or ''
local reply = { ARGV[1], now, held_type, value, redis.call('PTTL', KEYS[1]), 0 }
if string.match(value, '^distlock group %S+$') then
  local inside = read('ZRANGE', KEYS[5], 0, ARGV[2] - 1, 'WITHSCORES')
  for i = 1, inside.err and 0 or #inside, 2 do
    local left = tonumber(inside[i + 1]) - math.floor(now / 1000)
    local entry = read('HGET', KEYS[4], inside[i])
    if left >= 0 and type(entry) == 'string' then
      reply[#reply + 1] = string.sub(entry, 1, MOST_BYTES)
      reply[#reply + 1] = left
      reply[6] = reply[6] + 1
    end
  end
end
local queued = read('ZRANGE', KEYS[2], 0, ARGV[2] - 1)
if not queued.err then
  for _, attempt in ipairs(queued) do
    local entry = read('HGET', KEYS[3], attempt)
    if type(entry) == 'string' and tonumber(string.match(entry, '^%d+ (%d+) ') or 0) * 1000 > now then
      reply[#reply + 1] = string.sub(entry, 1, MOST_BYTES)
    end
  end
end
return reply
