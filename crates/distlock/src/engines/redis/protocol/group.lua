-- Locks that several hold: readers, permits of a semaphore, entries of one owner. KEYS, ARGV: as in head.lua; reply: none.
--
-- The lock's value is then 'distlock group WORD'. The word says who may be in: 's' readers, 'p3' permits of a semaphore of
-- three, 'r' and its name in hex the entries of one owner. A lock of one has the word 'x'.
--   holders  attempt -> 'token slot since_us wake record'; '#0' and so on -> the attempt that has that slot
--   leases   attempt -> when its lease ends, in ms of the server's clock
-- The lock and both expire with the longest lease: it is there as long as somebody is inside.
local now_ms = math.floor(now / 1000)

local function read_group(value)
  return string.match(value, '^distlock group (%S+)$')
end

-- The companion that is of another type, if one is.
local function foreign_companion()
  if type(read('HGET', holders, '#0')) == 'table' then
    return holders
  elseif type(read('ZCARD', leases)) == 'table' then
    return leases
  end
end

local function read_holder(id)
  local entry = read('HGET', holders, id)
  if type(entry) ~= 'string' then
    return nil
  end
  local token, slot, since, channel, text = string.match(entry, '^(%d+) (%S+) (%d+) (%S+) ({.*)$')
  return token and { id = id, token = token, slot = slot, since = since, channel = channel, text = text }
end

-- The same, but only of one whose lease is not over.
local function read_inside(id)
  local ends = read('ZSCORE', leases, id)
  return type(ends) == 'string' and tonumber(ends) >= now_ms and read_holder(id) or nil
end

-- Makes the keys last as long as the longest lease, and no longer.
local function keep_group()
  local last = redis.call('ZRANGE', leases, -1, -1, 'WITHSCORES')
  local left = string.format('%.0f', math.max(1, tonumber(last[2]) - now_ms))
  redis.call('PEXPIRE', lock, left)
  redis.call('PEXPIRE', holders, left)
  redis.call('PEXPIRE', leases, left)
end

-- After somebody left: false when nobody is inside any more, and the lock is free.
local function settle_group()
  if redis.call('ZCARD', leases) == 0 then
    redis.call('DEL', lock, holders, leases)
    return false
  end
  keep_group()
  return true
end

-- Takes away what is left of a group whose lock was deleted by hand.
local function forget_group()
  if redis.call('EXISTS', holders, leases) > 0 then
    redis.call('DEL', holders, leases)
  end
end

-- Notes whose lease decides when the lock is free.
local function note_longest()
  local last = redis.call('ZRANGE', leases, -1, -1, 'WITHSCORES')
  local holder = last[1] and read_holder(last[1])
  if holder then
    note_holder(holder.channel, math.max(0, tonumber(last[2]) - now_ms), holder.text, 'g')
  else
    note_holder(nil)
  end
end

-- How many a group may have.
local function size_of(word)
  return tonumber(string.match(word, '^p(%d+)$')) or math.huge
end

local function free_slot(of)
  local fields = {}
  for i = 1, of do
    fields[i] = '#' .. i - 1
  end
  local taken = redis.call('HMGET', holders, unpack(fields))
  for i = 1, of do
    if not taken[i] then
      return string.format('%d', i - 1)
    end
  end
end

-- A lease is never made shorter.
local function extend(id, lease_ms)
  local ends = now_ms + lease_ms
  if tonumber(redis.call('ZSCORE', leases, id) or 0) < ends then
    redis.call('ZADD', leases, string.format('%.0f', ends), id)
  end
  keep_group()
end

-- Writes what is known about one inside. An answer is what the server says when it refuses.
local function write_holder(holder)
  local entry = string.format('%s %s %s %s ', holder.token, holder.slot, holder.since, holder.channel) .. holder.text
  local set = redis.pcall('HSET', holders, holder.id, entry)
  if type(set) == 'table' then
    return set
  end
  if holder.slot ~= '-' then
    redis.call('HSET', holders, '#' .. holder.slot, holder.id)
  end
end

-- Puts one in, the first or one more. Answers its slot, '-' where there are none; nil when there is no room, and what the
-- server says when it refuses.
local function enter(word, id, token, lease_ms, channel, text)
  local of, slot = size_of(word), '-'
  if of < math.huge then
    slot = free_slot(of)
    if not slot then
      return nil
    end
  end
  local since = string.format('%.0f', now)
  local refused = write_holder({ id = id, token = token, slot = slot, since = since, channel = channel, text = text })
  if refused then
    return nil, refused
  end
  redis.call('ZADD', leases, string.format('%.0f', now_ms + lease_ms), id)
  redis.call('SET', lock, 'distlock group ' .. word, 'PX', lease_ms)
  keep_group()
  return slot
end

-- Takes one out; the caller settles.
local function leave(id)
  local holder = read_holder(id)
  if holder and holder.slot ~= '-' then
    redis.call('HDEL', holders, '#' .. holder.slot)
  end
  redis.call('HDEL', holders, id)
  redis.call('ZREM', leases, id)
end

-- Takes those out whose lease is over. Returns of each channel for `purge` after which time a claim shows that it lives, and
-- whether there were any; the caller settles.
local function drop_expired()
  local silent, is_less = {}, false
  for _ = 1, MOST_SEEN / 32 do
    local first = redis.call('ZRANGE', leases, 0, 31, 'WITHSCORES')
    for i = 1, #first, 2 do
      local ended = tonumber(first[i + 1])
      if ended >= now_ms then
        return silent, is_less
      end
      local holder = read_holder(first[i])
      if holder then
        -- Perhaps it was a first lease, at the end of which a delay may stand: a claim in that time shows life, too.
        local after = math.max(math.floor(holder.since / 1000), ended - FIRST_LEASE_MS)
        silent[holder.channel] = math.max(silent[holder.channel] or LAPSED, lapses(holder.text) and LAPSED or after)
      end
      leave(first[i])
      is_less = true
    end
    if #first < 64 then
      break
    end
  end
  return silent, is_less
end

-- A token that was made and that nobody has: the one it was for turned out to be gone.
local spare_token

-- The digits of the token for one more: a new one, but the owner's for its entries. Refusals as in fence.lua.
local function token_for(word)
  local first = string.sub(word, 1, 1) == 'r' and redis.call('ZRANGE', leases, 0, 0)[1]
  local inside = first and read_holder(first)
  if inside then
    return inside.token
  elseif spare_token then
    return spare_token
  end
  local token, digits = next_token(fence)
  if not token then
    return nil, digits
  end
  spare_token = digits
  return digits
end

-- Sends a message to a waiter's process. Returns whether it is heard; nil when it cannot be sent.
local function send(channel, message)
  if deaf[channel] then
    return false
  end
  local heard = redis.pcall('PUBLISH', 'distlock:wake:' .. channel, message)
  if type(heard) == 'table' then
    return nil
  elseif heard == 0 then
    deaf[channel], unheard = true, unheard + 1
  end
  return heard > 0
end

-- Tells a waiter that it has the lock. Returns as `send`.
local function tell(waiter, token, slot)
  local message = string.format('grant %s %s %.0f %d', waiter.id, token, now, waiter.first_ms)
  if slot ~= '-' then
    message = message .. ' ' .. slot
  end
  local heard = send(waiter.channel, message)
  if heard then
    spare_token = nil
  end
  return heard
end

-- Lets a waiter in and tells it. Answers as `tell`; whoever does not hear is out again.
local function hand_place(waiter)
  local token = token_for(waiter.word)
  local slot = token
    and enter(waiter.word, waiter.id, token, waiter.first_ms + waiter.delay_ms, waiter.channel, waiter.text)
  if not slot then
    return nil
  end
  local heard = tell(waiter, token, slot)
  if not heard then
    leave(waiter.id)
    settle_group()
  end
  return heard
end

-- Lets those in who may join the group that is inside: the head of the queue as long as there is room for it, and entries
-- of the owner wherever they stand. Returns whether it is the turn of `me`, which stays out; whether the head of the queue
-- should look for itself; and whether that is because a bound ended this, so that another call gets further.
local function let_in(word, me)
  local is_of_owner = string.sub(word, 1, 1) == 'r'
  local room = size_of(word) - redis.call('ZCARD', leases)
  local gone, is_mine, is_more, entered = {}, false, false, 0
  local is_stopped = false
  local is_cut = walk(function(id, waiter, is_foreign)
    if room <= 0 or id == me or is_foreign then
      is_mine, is_more = id == me and room > 0 and not is_stopped, is_stopped
      return true
    elseif is_dead(waiter, is_foreign) then
      gone[#gone + 1] = id
      return false
    elseif is_stopped or entered == MOST_LET_IN or unheard >= most_unheard then
      -- No other waiter is tried. The dead ones behind are dropped all the same, or there would be too many of them.
      is_more, is_stopped = true, true
      return false
    end
    local heard = nil
    if waiter.word ~= word then
      is_more = false
    elseif waiter.channel == '-' then
      is_more = true
    else
      heard = hand_place(waiter)
      is_more = is_more or heard == nil
    end
    if heard then
      room, entered = room - 1, entered + 1
    end
    if heard ~= nil then
      gone[#gone + 1] = id
    end
    return heard == nil and not is_of_owner
  end)
  if #gone > 0 then
    drop(gone)
    note_longest()
  end
  -- Where nothing was dropped, another call would see the same places.
  return is_mine, is_more or is_cut, is_stopped or is_cut and #gone > 0
end

-- One of those inside as the value of a lock would show it, and what is left of its lease: of the one whose lease ends
-- first, or last.
local function show_one(place)
  local found = read('ZRANGE', leases, place, place, 'WITHSCORES')
  local holder = found[1] and read_holder(found[1])
  if holder then
    local shown = table.concat({ holder.id, holder.token, holder.channel, holder.text }, ' ')
    return string.sub(shown, 1, 4096), tonumber(found[2]) - now_ms
  end
end
