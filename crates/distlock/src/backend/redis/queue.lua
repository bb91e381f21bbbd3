-- Comes before claim, release and break. KEYS: lock, queue, waiters, fence; ARGV: nonce, and what each says; reply: none.
local lock, queue, waiters, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local nonce = ARGV[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- A grant that was handed over lasts this long at first, so that a frozen process costs the others little.
local FIRST_LEASE_MS = 1000
-- How many waiters that are gone one call drops.
local MOST_GONE = 32
-- A fence further ahead of the clock than this was not made by us.
local MOST_AHEAD_US = 86400000000
local KEEP_FENCE_MS = 604800000

-- Lua's own tostring loses digits from 10^14 on.
local function digits(number)
  return string.format('%.0f', number)
end

-- The attempt, the token and the wake-up channel in a value of ours; nil for everybody else's.
local function read_value(value)
  local attempt, token, wake = string.match(value, '^(%x+) (%d+) (%S+) {')
  if attempt and #attempt == 32 then
    return attempt, token, wake
  end
end

-- The next token, or nil when the fence is not one of ours.
local function next_token()
  local last = redis.pcall('GET', fence)
  if not last then
    return now
  end
  local number = type(last) == 'string' and tonumber(last)
  if not number or number > now + MOST_AHEAD_US then
    return nil
  end
  return math.max(number + 1, now)
end

local function set_lock(attempt, token, wake, record, lease_ms)
  local value = attempt .. ' ' .. digits(token) .. ' ' .. wake .. ' ' .. record
  return redis.pcall('SET', lock, value, 'PX', lease_ms)
end

local function set_fence(token)
  redis.call('SET', fence, digits(token), 'PX', KEEP_FENCE_MS)
end

-- What the lock holds: nil when it is free, and its type. Not all of it: somebody may keep a film there.
local function read_lock(last_byte)
  local held = redis.pcall('GETRANGE', lock, 0, last_byte)
  if type(held) == 'table' then
    return '', redis.call('TYPE', lock).ok
  elseif held == '' and redis.call('EXISTS', lock) == 0 then
    return nil, 'none'
  end
  return held, 'string'
end

-- Every attempt that waits behind one wake-up channel.
local function all_behind(wake)
  local found = {}
  local entries = redis.call('HGETALL', waiters)
  for i = 1, #entries, 2 do
    if string.match(entries[i + 1], '^%d+ %d+ (%S+) ') == wake then
      found[#found + 1] = entries[i]
    end
  end
  return found
end

-- Takes places away. Without any left, nothing of the queue stays.
local function drop(gone, holder_wake)
  for from = 1, #gone, 500 do
    local till = math.min(from + 499, #gone)
    redis.call('ZREM', queue, unpack(gone, from, till))
    redis.call('HDEL', waiters, unpack(gone, from, till))
  end
  if redis.call('ZCARD', queue) == 0 then
    redis.call('DEL', queue, waiters)
  elseif holder_wake and holder_wake ~= '-' then
    -- Whoever finds this lease run out knows whose waiters not to try next.
    redis.call('HSET', waiters, 'handed', holder_wake)
  else
    redis.call('HDEL', waiters, 'handed')
  end
end

-- Looks for the next waiter that lives and gives it the lock, which must be free or the caller's own. Reads first: what
-- it finds of another type ends it before anything is written. Answers:
--   'handed'  a waiter has the lock and was told
--   'mine'    the next is `me`; nothing is set for it yet
--   'left'    the next one only polls, or cannot be given the lock now; the lock is free for it
--   'nobody'  nobody waits
-- and the waiters that are gone, which the caller drops.
local function pass_on(me, skip)
  local gone, set = {}, false
  local outcome, holder_wake = 'nobody', nil
  local token
  for place = 0, MOST_GONE - 1 do
    local found = redis.pcall('ZRANGE', queue, place, place)
    if found.err or not found[1] then
      break
    end
    local attempt = found[1]
    if attempt == me then
      outcome = 'mine'
      break
    end
    local entry = redis.pcall('HGET', waiters, attempt)
    if type(entry) == 'table' then
      outcome = 'left'
      break
    end
    local ttl, alive_until, wake, record
    if entry then
      ttl, alive_until, wake, record = string.match(entry, '^(%d+) (%d+) (%S+) ({.*)$')
    end
    if ttl and tonumber(alive_until) * 1000 > now and not (skip and wake == skip) then
      token = token or next_token()
      if wake == '-' or not token then
        outcome = 'left'
        break
      end
      local lease = math.min(tonumber(ttl), FIRST_LEASE_MS)
      if set_lock(attempt, token, wake, record, lease).err then
        outcome = 'left'
        break
      end
      set = true
      local message = 'grant ' .. attempt .. ' ' .. digits(token) .. ' ' .. digits(now) .. ' ' .. lease
      local heard = redis.pcall('PUBLISH', 'distlock:wake:' .. wake, message)
      if type(heard) == 'table' then
        outcome = 'left'
        break
      end
      if heard > 0 then
        set_fence(token)
        gone[#gone + 1] = attempt
        outcome, holder_wake = 'handed', wake
        break
      end
    end
    gone[#gone + 1] = attempt
  end
  if set and outcome ~= 'handed' then
    redis.call('DEL', lock)
  end
  return outcome, gone, holder_wake
end

-- Tells the first waiter that the lock is free, when it could not be handed over. Answers who that is.
local function poke()
  local first = redis.pcall('ZRANGE', queue, 0, 0)[1]
  local entry = first and redis.pcall('HGET', waiters, first)
  local wake = type(entry) == 'string' and string.match(entry, '^%d+ %d+ (%x+) ')
  if wake then
    redis.pcall('PUBLISH', 'distlock:wake:' .. wake, 'retry ' .. first)
  end
  return first or ''
end

-- Ends the hold that the caller has checked: the next waiter gets the lock, or it is free. Answers who must claim it
-- then without having been told.
local function give_away()
  local outcome, gone, holder_wake = pass_on(nil, nil)
  if outcome ~= 'handed' then
    redis.call('DEL', lock)
  end
  if #gone > 0 or holder_wake then
    drop(gone, holder_wake)
  end
  return outcome == 'left' and poke() or ''
end
