-- KEYS: lock, queue, waiters; ARGV: nonce, most waiters; reply: nonce, now_us, type, value, pttl_ms, then an entry of each waiter that lives
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local held_type = redis.call('TYPE', KEYS[1]).ok
-- Not all of it: somebody may keep a film there.
local value = held_type == 'string' and redis.call('GETRANGE', KEYS[1], 0, 4095) or ''
local reply = { ARGV[1], now, held_type, value, redis.call('PTTL', KEYS[1]) }
local queued = redis.pcall('ZRANGE', KEYS[2], 0, ARGV[2] - 1)
if not queued.err then
  for _, attempt in ipairs(queued) do
    local entry = redis.pcall('HGET', KEYS[3], attempt)
    if type(entry) == 'string' and tonumber(string.match(entry, '^%d+ (%d+) ') or 0) * 1000 > now then
      reply[#reply + 1] = entry
    end
  end
end
return reply
