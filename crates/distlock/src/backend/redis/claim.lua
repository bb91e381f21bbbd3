-- KEYS: lock, queue, waiters, fence; ARGV: nonce, attempt, ttl_ms, record, wake, heartbeat_ms (0: no queue), not_after_us; reply: nonce, now_us, outcome, ...
-- Outcomes: 'granted', token | 'busy', pttl_ms, place (-1: none), value, type | 'late' | 'fence' | 'foreign', key.
local held, held_type = read_lock()
if held then
  local holder, token = read_value(held)
  if holder == attempt then
    -- A repeat, or the first the waiter hears of a handoff. A lease is never made shorter.
    if redis.call('PTTL', lock) < tonumber(ttl_ms) then
      redis.call('PEXPIRE', lock, ttl_ms)
    end
    return { nonce, now, 'granted', tonumber(token) }
  end
else
  -- Free, but somebody waits: nobody is passed over.
  local waiting = redis.pcall('ZCARD', queue)
  if type(waiting) == 'table' then
    return { nonce, now, 'foreign', queue }
  end
  local silent = redis.pcall('HGET', waiters, 'handed')
  if type(silent) == 'table' then
    return { nonce, now, 'foreign', waiters }
  end
  -- The last one that got the lock let its lease run out: its process is frozen or gone, and each of its waiters would
  -- cost a first lease more. Not so if it is the one that asks.
  local purged = silent and silent ~= wake and all_behind(silent) or {}
  local outcome, gone, holder_wake = pass_on(attempt, #purged > 0 and silent)
  if outcome == 'mine' then
    gone[#gone + 1] = attempt
  end
  for _, id in ipairs(purged) do
    gone[#gone + 1] = id
  end
  local granted
  if outcome == 'nobody' or outcome == 'mine' then
    granted = grant(waiting > #gone and '+' or ' ')
    if granted[3] ~= 'granted' then
      return granted
    end
    holder_wake = wake
  end
  drop(gone, holder_wake)
  if #purged > 0 then
    -- In case it lives after all.
    redis.pcall('PUBLISH', 'distlock:wake:' .. silent, 'retry ' .. table.concat(purged, ' '))
  end
  if granted then
    return granted
  end
  held, held_type = read_lock()
end

local place = -1
if heartbeat_ms > 0 then
  local last = redis.pcall('ZRANGE', queue, -1, -1, 'WITHSCORES')
  if last.err then
    return { nonce, now, 'foreign', queue }
  end
  local ticket = math.max((tonumber(last[2]) or 0) + 1, now)
  local entry = string.format('%s %.0f %s %s', ttl_ms, now / 1000 + heartbeat_ms, wake, record)
  -- A repeat keeps its place.
  redis.call('ZADD', queue, 'NX', string.format('%.0f', ticket), attempt)
  if type(redis.pcall('HSET', waiters, attempt, entry)) == 'table' then
    redis.call('ZREM', queue, attempt)
    return { nonce, now, 'foreign', waiters }
  end
  place = redis.call('ZRANK', queue, attempt)
  -- Nothing of the queue outlives the heartbeat of its last waiter.
  if place == 0 or redis.call('PTTL', waiters) < heartbeat_ms then
    redis.call('PEXPIRE', queue, heartbeat_ms)
    redis.call('PEXPIRE', waiters, heartbeat_ms)
  end
  if held_type == 'string' and string.sub(held, 33, 33) == ' ' and read_value(held) then
    redis.call('SETRANGE', lock, 32, '+')
  end
end
return { nonce, now, 'busy', redis.call('PTTL', lock), place, held or '', held_type }
