-- KEYS: lock, queue, waiters, fence, node; ARGV: nonce, attempt, ballot, ttl_ms, wake and record, heartbeat_ms (0: no queue), ticket_us, waits (1: has a place), not_after_us, guard (1: on); reply: nonce, now_us, vote, ...
-- Votes: 'ack' | 'low', ballot | 'held', pttl_ms, place (-1: none), value, type | 'late' | 'ahead' | 'fresh' | 'quarantined', left_ms | 'foreign', key.
local lock, queue, waiters, fence, node = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local nonce, attempt, ballot, ttl_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- Somebody else has it. A waiter takes its place, or keeps it, so that a release can tell it.
local function held_by_another(value)
  local place, heartbeat_ms = -1, tonumber(ARGV[6])
  if heartbeat_ms > 0 then
    local entry = string.format('%.0f %.0f %s', ttl_ms, now / 1000 + heartbeat_ms, ARGV[5])
    if type(redis.pcall('ZADD', queue, 'NX', ARGV[7], attempt)) == 'table' then
      return { nonce, now, 'foreign', queue }
    end
    if type(redis.pcall('HSET', waiters, attempt, entry)) == 'table' then
      redis.call('ZREM', queue, attempt)
      return { nonce, now, 'foreign', waiters }
    end
    place = redis.call('ZRANK', queue, attempt)
    -- Nothing of the queue outlives the heartbeat of its last waiter.
    if redis.call('PTTL', waiters) < heartbeat_ms then
      redis.call('PEXPIRE', queue, heartbeat_ms)
      redis.call('PEXPIRE', waiters, heartbeat_ms)
    end
  end
  return { nonce, now, 'held', redis.call('PTTL', lock), place, value, redis.call('TYPE', lock).ok }
end

-- Its sender has given up on it, and perhaps released it already by another way.
if now > tonumber(ARGV[9]) then
  return { nonce, now, 'late' }
end
-- Not all of it: somebody may keep a film there.
local held = redis.pcall('GETRANGE', lock, 0, 4095)
if type(held) == 'table' then
  return held_by_another('')
end
local is_mine = string.sub(held, 1, 33) == attempt .. ' '
if held ~= '' and not is_mine then
  return held_by_another(held)
end
-- A ballot from a clock that far ahead would be everybody's burden from then on.
if ballot > now + 86400000000 then
  return { nonce, now, 'ahead' }
end

-- What is the attempt's own was granted by this node, so it has forgotten nothing of it.
local born, horizon = 0, nil
if ARGV[10] == '1' and not is_mine then
  local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local seen = redis.pcall('GET', node)
  if type(seen) == 'table' then
    return { nonce, now, 'foreign', node }
  end
  local id, born_us, until_us, horizon_us = string.match(seen or '', '^(%x+) (%d+) (%d+) (%d+)$')
  if id ~= run_id then
    return { nonce, now, 'fresh' }
  end
  if now < tonumber(until_us) then
    return { nonce, now, 'quarantined', math.ceil((until_us - now) / 1000) }
  end
  born = tonumber(born_us)
  if now + ttl_ms * 1000 > tonumber(horizon_us) then
    -- A quarter ahead, so that it need not be written for each lock.
    horizon = string.format('%s %s %s %.0f', id, born_us, until_us, now + ttl_ms * 1250)
  end
end

local last = redis.pcall('GET', fence)
if type(last) == 'table' then
  return { nonce, now, 'foreign', fence }
end
if last and not tonumber(last) then
  return { nonce, now, 'foreign', fence }
end
-- Before the node was born it may have known of higher ballots than those that it has kept.
local stored = math.max(last and tonumber(last) or 0, born)
if ballot < stored or ballot == stored and not is_mine then
  return { nonce, now, 'low', string.format('%.0f', stored) }
end

-- Lua's own tostring loses digits from 10^14 on.
local digits = string.format('%.0f', ballot)
-- The first write decides whether there is memory to write.
local set = redis.pcall('SET', fence, digits, 'PX', 604800000)
if set.err then
  return set
end
if horizon then
  redis.call('SET', node, horizon)
end
local value = attempt .. ' ' .. digits .. ' ' .. ARGV[5]
if is_mine then
  -- A lease is never made shorter.
  local lease = math.max(ttl_ms, redis.call('PTTL', lock))
  redis.call('SET', lock, value, 'PX', string.format('%.0f', lease))
elseif not redis.call('SET', lock, value, 'NX', 'PX', ARGV[4]) then
  -- An empty string is something, too.
  return held_by_another(held)
end
if ARGV[8] == '1' then
  redis.pcall('ZREM', queue, attempt)
  redis.pcall('HDEL', waiters, attempt)
end
return { nonce, now, 'ack' }
