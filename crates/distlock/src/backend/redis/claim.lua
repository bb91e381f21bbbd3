-- KEYS: lock, queue, waiters, fence; ARGV: nonce, attempt, ttl_ms, record, wake, heartbeat_ms (0: no queue), not_after_us; reply: nonce, now_us, outcome, ...
-- Outcomes: 'granted', token | 'busy', pttl_ms, place (-1: none), value, type | 'late' | 'fence' | 'foreign', key.
local attempt, ttl_ms, record, wake = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local heartbeat_ms, not_after = tonumber(ARGV[6]), tonumber(ARGV[7])

-- Its sender has given up on it, and perhaps released it already by another way.
if now > not_after then
  return { nonce, now, 'late' }
end

local held, held_type = read_lock(4095)
if held then
  local holder, token = read_value(held)
  if holder == attempt then
    -- A repeat, or the first the waiter hears of a handoff. A lease is never made shorter.
    if redis.call('PTTL', lock) < tonumber(ttl_ms) then
      redis.call('PEXPIRE', lock, ttl_ms)
    end
    return { nonce, now, 'granted', tonumber(token) }
  end
end

local waiting = redis.pcall('ZCARD', queue)
if type(waiting) == 'table' then
  return { nonce, now, 'foreign', queue }
end
local kind = (waiting > 0 or held) and redis.call('TYPE', waiters).ok or 'none'
if kind ~= 'hash' and kind ~= 'none' then
  return { nonce, now, 'foreign', waiters }
end

if not held then
  local token = next_token()
  if not token then
    return { nonce, now, 'fence' }
  end
  local gone = {}
  local outcome, holder_wake = 'nobody', nil
  if waiting > 0 then
    -- The last one that was handed the lock let its lease run out: its process is frozen or gone, and each of its
    -- waiters would cost a first lease more. Not so if it is the one that asks.
    local silent = redis.call('HGET', waiters, 'handed')
    local purged = silent and silent ~= wake and all_behind(silent) or {}
    outcome, gone, holder_wake = pass_on(attempt, #purged > 0 and silent)
    for _, dead in ipairs(purged) do
      gone[#gone + 1] = dead
    end
    if #purged > 0 then
      -- In case it lives after all.
      redis.pcall('PUBLISH', 'distlock:wake:' .. silent, 'retry ' .. table.concat(purged, ' '))
    end
    if outcome == 'mine' then
      gone[#gone + 1] = attempt
    end
  end
  if outcome == 'nobody' or outcome == 'mine' then
    local set = set_lock(attempt, token, wake, record, ttl_ms)
    if set.err then
      return set
    end
    set_fence(token)
    if waiting > 0 then
      drop(gone, wake)
    end
    return { nonce, now, 'granted', token }
  end
  drop(gone, holder_wake)
  held, held_type = read_lock(4095)
end

local place = -1
if heartbeat_ms > 0 then
  local entry = ttl_ms .. ' ' .. digits(now / 1000 + heartbeat_ms) .. ' ' .. wake .. ' ' .. record
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
  local ticket = math.max((tonumber(last) or 0) + 1, now)
  redis.call('ZADD', queue, 'NX', digits(ticket), attempt)
  redis.call('HSET', waiters, attempt, entry)
  -- Nothing of the queue outlives the heartbeat of its last waiter.
  if math.min(redis.call('PTTL', queue), redis.call('PTTL', waiters)) < heartbeat_ms then
    redis.call('PEXPIRE', queue, heartbeat_ms)
    redis.call('PEXPIRE', waiters, heartbeat_ms)
  end
  place = redis.call('ZRANK', queue, attempt)
end
return { nonce, now, 'busy', redis.call('PTTL', lock), place, held or '', held_type }
