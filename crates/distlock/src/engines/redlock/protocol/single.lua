-- KEYS, ARGV, reply: as of batch.lua
-- The fast path of batch.lua: one claim or release alone, on a lock without a queue. It stands before the shared functions,
-- whose definition alone costs the server as much as a command. Any other case falls through to batch.lua.
if #KEYS == 5 and ARGV[3] == 'claim' then
  local clock = redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]
  local values = redis.call('MGET', KEYS[1], KEYS[5])
  local run_id, born, quarantine_end, leases_end, max_lease = string.match(values[1] or '', '^(%x+) (%d+) %d+ (%d+) (%d+) (%d+)$')
  local last = tonumber(values[2] or redis.pcall('GET', KEYS[5]) == false and 0)
  local ballot, ttl_ms, is_queued, not_after_us = tonumber(ARGV[5]), ARGV[6], ARGV[10], tonumber(ARGV[11])
  local may_vote = last and run_id == ARGV[2] and now >= tonumber(quarantine_end)
  may_vote = may_vote and now + ttl_ms * 1000 <= tonumber(leases_end) and ttl_ms * 1000 <= tonumber(max_lease)
  may_vote = may_vote and ballot > last and ballot > tonumber(born) and ballot <= now + 86400000000
  if may_vote and is_queued == '0' and now <= not_after_us then
    local set = redis.pcall('SET', KEYS[2], ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. ARGV[7], 'NX', 'PX', ttl_ms)
    if set and not set.err then
      redis.call('SET', KEYS[5], ARGV[5], 'PX', 604800000)
      return { ARGV[1], now, { 'ack' } }
    end
  end
elseif #KEYS == 5 and ARGV[8] ~= '2' then
  local head = ARGV[4] .. ' ' .. ARGV[5] .. ' '
  local held = redis.pcall('GETRANGE', KEYS[2], 0, #head - 1)
  -- Its ballot is the last one, and there is no queue: only the fence moves, and no waiter is notified.
  if held == head and redis.pcall('GET', KEYS[5]) == ARGV[5] and redis.call('EXISTS', KEYS[3]) == 0 then
    redis.pcall('INCR', KEYS[5])
    redis.call('DEL', KEYS[2])
    return { ARGV[1], 0, { 'released' } }
  end
end
