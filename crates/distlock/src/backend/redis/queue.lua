-- What claim, release and break do with those who wait. KEYS, ARGV: as in head.lua; reply: none.

-- A grant that was handed over lasts this long at first, so that a frozen process costs the others little.
local FIRST_LEASE_MS = 1000
-- How many waiters that are gone one call drops.
local MOST_GONE = 32

-- What the lock holds: nil when it is free, and its type. Not all of it: somebody may keep a film there.
local function read_lock()
  local value = redis.pcall('GETRANGE', lock, 0, 4095)
  if type(value) == 'table' then
    return '', redis.call('TYPE', lock).ok
  elseif value == '' and redis.call('EXISTS', lock) == 0 then
    return nil, 'none'
  end
  return value, 'string'
end

-- The attempt, the token and the wake-up channel in a value of ours; nil for everybody else's.
local function read_value(value)
  local id, token, channel = string.match(value, '^(%x+)[ +](%d+) (%S+) {')
  if id and #id == 32 then
    return id, token, channel
  end
end

-- Every attempt that waits behind one wake-up channel.
local function all_behind(channel)
  local found = {}
  local entries = redis.call('HGETALL', waiters)
  for i = 1, #entries, 2 do
    if string.match(entries[i + 1], '^%d+ %d+ (%S+) ') == channel then
      found[#found + 1] = entries[i]
    end
  end
  return found
end

-- Takes places away, and notes who has the lock now. Without any place left, nothing of the queue stays.
local function drop(gone, holder_wake)
  for from = 1, #gone, 500 do
    local till = math.min(from + 499, #gone)
    redis.call('ZREM', queue, unpack(gone, from, till))
    redis.call('HDEL', waiters, unpack(gone, from, till))
  end
  if redis.call('EXISTS', queue) == 0 then
    redis.call('DEL', waiters)
  elseif holder_wake and holder_wake ~= '-' then
    -- Whoever finds this lease run out knows whose waiters not to try next.
    redis.call('HSET', waiters, 'handed', holder_wake)
  else
    redis.call('HDEL', waiters, 'handed')
  end
end

-- Looks for the next waiter that lives and gives it the lock, which must be free or the caller's own. Reads before it
-- writes: what it finds of another type ends it. Answers:
--   'handed'  a waiter has the lock and was told
--   'mine'    the next is `me`; nothing is set for it yet
--   'left'    the next one only polls, or cannot be given the lock now; the lock is free for it
--   'nobody'  nobody waits
-- and the waiters that are gone, which the caller drops. Those behind the channel `skip` the caller knows.
local function pass_on(me, skip)
  local gone, set = {}, false
  local outcome, holder_wake = 'nobody', nil
  local token
  for place = 0, MOST_GONE - 1 do
    -- Two, to see whether somebody is behind the one.
    local found = redis.pcall('ZRANGE', queue, place, place + 1)
    local id = found[1]
    if found.err or not id then
      break
    end
    if id == me then
      outcome = 'mine'
      break
    end
    local entry = redis.pcall('HGET', waiters, id)
    if type(entry) == 'table' then
      outcome = 'left'
      break
    end
    local ttl, alive_until, channel, text
    if entry then
      ttl, alive_until, channel, text = string.match(entry, '^(%d+) (%d+) (%S+) ({.*)$')
    end
    local is_skipped = skip and channel == skip
    if ttl and tonumber(alive_until) * 1000 > now and not is_skipped then
      if channel == '-' then
        outcome = 'left'
        break
      end
      token = token or next_token()
      local lease = math.min(tonumber(ttl), FIRST_LEASE_MS)
      if not token or set_lock(id, found[2] and '+' or ' ', token, channel, text, lease).err then
        outcome = 'left'
        break
      end
      set = true
      local message = string.format('grant %s %.0f %.0f %d', id, token, now, lease)
      local heard = redis.pcall('PUBLISH', 'distlock:wake:' .. channel, message)
      if type(heard) == 'table' then
        outcome = 'left'
        break
      end
      if heard > 0 then
        gone[#gone + 1] = id
        outcome, holder_wake = 'handed', channel
        break
      end
    end
    if not is_skipped then
      gone[#gone + 1] = id
    end
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
  local channel = type(entry) == 'string' and string.match(entry, '^%d+ %d+ (%x+) ')
  if channel then
    redis.pcall('PUBLISH', 'distlock:wake:' .. channel, 'retry ' .. first)
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
  if #gone > 0 then
    drop(gone, holder_wake)
  end
  if outcome == 'left' or outcome == 'nobody' and #gone > 0 then
    return poke()
  end
  return ''
end
