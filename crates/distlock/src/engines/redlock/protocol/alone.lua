-- Begins the round: one request alone on a lock that nobody waits for, which needs little. Whatever is different is left to what follows. KEYS, ARGV, reply: as the round.
if #KEYS == 5 and ARGV[3] == 'claim' then
  local clock = redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]
  local found = redis.call('MGET', KEYS[1], KEYS[5])
  local id, born, until_us, horizon, longest = string.match(found[1] or '', '^(%x+) (%d+) %d+ (%d+) (%d+) (%d+)$')
  local last = tonumber(found[2] or redis.pcall('GET', KEYS[5]) == false and 0)
  local ballot, ttl_ms, waits, not_after_us = tonumber(ARGV[5]), ARGV[6], ARGV[10], tonumber(ARGV[11])
  local votes = last and id == ARGV[2] and now >= tonumber(until_us)
  votes = votes and now + ttl_ms * 1000 <= tonumber(horizon) and ttl_ms * 1000 <= tonumber(longest)
  if votes and waits == '0' and now <= not_after_us and ballot > last and ballot > tonumber(born) and ballot <= now + 86400000000 then
    local set = redis.pcall('SET', KEYS[2], ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. ARGV[7], 'NX', 'PX', ttl_ms)
    if set and not set.err then
      redis.call('SET', KEYS[5], ARGV[5], 'PX', '604800000')
      return { ARGV[1], now, { 'ack' } }
    end
  end
elseif #KEYS == 5 and ARGV[8] ~= '2' then
  local head = ARGV[4] .. ' ' .. ARGV[5] .. ' '
  local held = redis.pcall('GETRANGE', KEYS[2], 0, #head - 1)
  -- Its ballot is the last one, and nobody waits: there is a tombstone to set, and nobody to tell.
  if held == head and redis.pcall('GET', KEYS[5]) == ARGV[5] and redis.call('EXISTS', KEYS[3]) == 0 then
    redis.pcall('INCR', KEYS[5])
    redis.call('DEL', KEYS[2])
    return { ARGV[1], 0, { 'released' } }
  end
end
