-- Functions that several scripts share. KEYS, ARGV: those of the script that follows; reply: none.
-- Each `local function` costs the server some hundred instructions per call, used or not. So only three are defined at once, and the
-- others when `open_lock` is called. A call of a command from a script costs more than most commands, and a conversion between number
-- and text nearly as much: the common paths do as little of both as they can, and give commands their numbers as text.
--
-- `guard` is the restart guard, nil without one. `is_sharded` is true in a cluster. Both are defined before this file.
--
-- A lock's value is 'ATTEMPT TOKEN CHANNEL RECORD'. The byte behind the attempt is '+' when the lock has waiters. Where several hold the
-- lock its value is 'distlock group MODE'. The mode says who may hold it together: 'x' one holder, 's' readers, 'p3' permits of a
-- semaphore of three, 'r' and the owner's name in hex the entries of one owner. In the lock's value 'p04' says that permits of several
-- sizes hold it, none larger than four: scripts that know nothing of sizes that change agree with none of it.
--   queue    attempt -> ticket
--   waiters  attempt -> 'ttl_ms alive_until_ms channel delay_ms mode record'; 'handed' -> the last holder (note_holder)
--   holders  attempt -> 'token slot since_us channel record' of a group; '#0' and so on -> the attempt that has that slot
--   leases   attempt -> when its lease ends, in ms of the server's clock
-- The lock, holders and leases of a group expire with the longest lease.

-- A value of ours: attempt (32 digits), token, channel.
local OURS = '^(%x+)[ +](%d+) (%S+) {'
-- What one call spends on dead waiters: how many places it looks at, how many channels without a listener it finds. Each walk and each
-- request may do the least, also when those before it have used up the most. And how many waiters a request lets in. Where a bound ends
-- it, the outcome is 'more', which is not 'nobody'.
local MOST_SEEN, MOST_UNHEARD, MOST_LET_IN = 1024, 128, 32
local LEAST_SEEN, LEAST_UNHEARD = 16, 8
-- Channels without a listener, their number, and the places looked at so far.
local deaf, unheard, looked_at = {}, 0, 0

-- Reads a key that may be of another type. Returns the reply; one of type `table` says that the key is of another type. Every other
-- refusal is raised: a missing right says nothing about whose a lock is. It is raised by asking again, so that it reads as the server
-- words it.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err and not string.find(reply.err, 'WRONGTYPE', 1, true) then
    return redis.call(...)
  end
  return reply
end

-- The token that this call has made last: the `fence` it is from, its number and `digits`, the `lock` it is for, and the other locks that
-- have it, by name.
local made
-- Sets the fence. Returns the token of the next grant and its digits: higher than every one before, and no lower than the clock in
-- microseconds, so that it rises even when the fence was lost. Returns nil, and leaves the fence as it was, when it is not one of ours;
-- the second value is then the outcome: the server's refusal to write, that of the restart guard (every grant needs a token), or 'fence'
-- and the fence's key. In a cluster each lock has a fence; elsewhere all locks behind a prefix have one.
-- The fence expires a week after the last grant, and up to an hour later: its end is set at the first grant of each hour only.
local FENCE_MS, HOUR_US = '608400000', 3600000000
local function next_token(lock, fence, now, now_digits)
  if made and made.fence == fence and made.lock ~= lock and not made.others[lock] then
    -- The grants of a call may have one token, as long as they are of different locks.
    made.others[lock] = true
    return made.token, made.digits
  end
  if guard then
    local left = guard().quarantine(now)
    if type(left) == 'table' then
      return nil, left
    elseif left > 0 then
      return nil, { 'quarantined', left }
    end
  end
  -- A fence further ahead of the clock than a day was not made by us.
  local most = now + 86400000000
  -- Its end stays, so that a fence that is not ours can be put back as it was.
  local last = redis.pcall('SET', fence, now_digits, 'KEEPTTL', 'GET')
  local is_set = type(last) ~= 'table'
  if not is_set then
    -- Not a string, or no memory, or a server before 6.2, which does not know GET.
    last = redis.pcall('GET', fence)
    if type(last) == 'table' then
      return nil, last
    end
  end
  local number = last and tonumber(last)
  -- 'nan' is not below anything either.
  if last and not (number and number <= most) then
    if is_set then
      redis.call('SET', fence, last, 'KEEPTTL')
    end
    return nil, { 'fence', fence }
  end
  local token, digits = now, now_digits
  if number and number >= now then
    -- Lua's own tostring loses digits from 10^14 on.
    token, digits = number + 1, string.format('%.0f', number + 1)
  end
  if not is_set or token ~= now then
    local set = redis.pcall('SET', fence, digits, 'PX', FENCE_MS)
    if set.err then
      return nil, set
    end
  elseif not number or number < now - now % HOUR_US then
    redis.call('PEXPIRE', fence, FENCE_MS)
  end
  made = { fence = fence, token = token, digits = digits, lock = lock, others = {} }
  return token, digits
end

-- Returns the functions for one lock that has a queue or several holders.
local function open_lock(lock, queue, waiters, fence, holders, leases, now, now_digits)
  local now_ms = math.floor(now / 1000)
  -- What is left of the call's bound.
  local most_unheard = math.max(MOST_UNHEARD, unheard + LEAST_UNHEARD)
  -- A token that was made and not given: the waiter that it was for turned out to be gone.
  local spare_token
  -- The mode in the lock's value, while a group holds it.
  local group

  -- Returns the lock's value, nil when it is free, and its type. Not all of it: a foreign key may hold megabytes. `value` is what a
  -- script has read before.
  local function read_lock(value)
    value = value or read('GETRANGE', lock, '0', '4095')
    if type(value) == 'table' then
      return '', redis.call('TYPE', lock).ok
    elseif value == '' and redis.call('EXISTS', lock) == 0 then
      return nil, 'none'
    end
    return value, 'string'
  end

  -- Returns the attempt, the token and the channel in a value of ours; nil for every other value.
  local function read_value(value)
    local id, token, channel = string.match(value, OURS)
    if id and #id == 32 then
      return id, token, channel
    end
  end

  -- Writes the lock of one holder. `mark` is '+' when the lock has waiters, otherwise ' '.
  local function set_lock(id, mark, token, channel, text, lease_ms)
    return redis.pcall('SET', lock, id .. mark .. token .. ' ' .. channel .. ' ' .. text, 'PX', lease_ms)
  end

  -- Sends a message to a process. In a cluster the fence's key has the tag of the lock, so the channel has its hash slot.
  local function publish(channel, message)
    if is_sharded then
      return redis.pcall('SPUBLISH', 'distlock:wake:' .. fence .. ':' .. channel, message)
    end
    return redis.pcall('PUBLISH', 'distlock:wake:' .. channel, message)
  end

  -- Parses a waiter's entry; nil when the waiter is gone.
  local function read_entry(id, entry)
    local ttl, alive_until, channel, delay, mode, text
    if entry then
      ttl, alive_until, channel, delay, mode, text = string.match(entry, '^(%d+) (%d+) (%S+) (%d+) (%S+) ({.*)$')
    end
    if ttl and tonumber(alive_until) * 1000 > now then
      local ttl_ms, delay_ms = tonumber(ttl), tonumber(delay)
      local first_ms = math.min(ttl_ms, FIRST_LEASE_MS)
      local waiter = { id = id, first_ms = first_ms, delay_ms = delay_ms, channel = channel, mode = mode, text = text }
      waiter.lease_ms = ttl_ms + delay_ms
      waiter.heartbeat_ms = math.min(math.max(ttl_ms, SHORTEST_HEARTBEAT_MS), LONGEST_HEARTBEAT_MS)
      waiter.claimed_ms = tonumber(alive_until) - waiter.heartbeat_ms
      return waiter
    end
  end

  -- Returns a waiter; nil when it is gone. The second value says that the waiters' key is of another type.
  local function read_waiter(id)
    local entry = read('HGET', waiters, id)
    if type(entry) == 'table' then
      return nil, true
    end
    return read_entry(id, entry)
  end

  -- Calls `visit` for the places of the queue, from its head on, until that returns true: with the id, the waiter (nil when it is gone),
  -- whether the waiters' key is of another type, and the id behind. The caller drops places afterwards. Returns true when there are more
  -- places than one call looks at.
  local function walk(visit)
    -- In few reads: most often the first place is all that is needed, seldom hundreds of dead ones stand before it.
    local from, count = 0, 1
    local most_seen = math.max(MOST_SEEN - looked_at, LEAST_SEEN)
    while from < most_seen do
      local ids = redis.pcall('ZRANGE', queue, from, from + count)
      if ids.err or not ids[1] then
        return false
      end
      local seen = math.min(count, #ids)
      looked_at = looked_at + seen
      local entries = redis.pcall('HMGET', waiters, unpack(ids, 1, seen))
      for i = 1, seen do
        local waiter = not entries.err and read_entry(ids[i], entries[i]) or nil
        if visit(ids[i], waiter, entries.err, ids[i + 1]) then
          return false
        end
      end
      if #ids <= count then
        return false
      end
      from, count = from + count, math.min(4 * count, 256)
    end
    return true
  end

  -- Returns whether a waiter that `walk` found is gone: its heartbeat has passed, or its channel has no listener.
  local function is_dead(waiter, is_foreign)
    return not is_foreign and (not waiter or deaf[waiter.channel] == true)
  end

  -- Removes places.
  local function drop(gone)
    for from = 1, #gone, 500 do
      local till = math.min(from + 499, #gone)
      redis.call('ZREM', queue, unpack(gone, from, till))
      redis.call('HDEL', waiters, unpack(gone, from, till))
    end
  end

  -- Returns whether a holder's lease may run out while its process lives: its record says so.
  local function lapses(text)
    return string.find(text, '"lapses":true', 1, true) ~= nil
  end

  -- Notes the last holder: channel, when, lease_ms, and how: 'h' it was handed over, 'g' it was claimed, 'l' it may lapse.
  -- Without any place left, nothing of the queue stays.
  local function note_holder(channel, lease_ms, text, how_given)
    if redis.call('EXISTS', queue) == 0 then
      redis.call('DEL', waiters)
    elseif channel and channel ~= '-' and redis.call('EXISTS', waiters) == 1 then
      -- A request that finds this lease run out knows whose waiters not to try next.
      local kind = how_given .. (lapses(text) and 'l' or '')
      redis.pcall('HSET', waiters, 'handed', string.format('%s %.0f %.0f %s', channel, now / 1000, lease_ms, kind))
    else
      redis.pcall('HDEL', waiters, 'handed')
    end
  end

  -- The time of a lease that was perhaps meant to run out: that by itself is no sign that its process is frozen.
  local LAPSED = 0

  -- Returns for `purge` the channel of a holder whose lease ran out, and the time in ms after which a claim shows that its process lives.
  -- None where the lease ran out as it was meant to.
  local function read_note(note)
    local channel, since, lease_ms, kind = string.match(note, '^(%S+) (%d+) (%d+) (%a+)$')
    if not channel then
      -- The format of older versions.
      return { [note] = math.huge }
    end
    local now_exact_ms = now / 1000
    -- Then it is the first lease that ran out, and was not renewed: a renewal would last until then at least.
    local is_first = string.sub(kind, 1, 1) == 'h' and now_exact_ms < since + lease_ms
    if string.sub(kind, 2) == 'l' then
      -- Its holder may have lost it before the first renewal.
      return is_first and { [channel] = LAPSED } or {}
    end
    -- A keeper renews twice and more in half of a lease.
    return { [channel] = is_first and tonumber(since) or now_exact_ms - lease_ms / 2 }
  end

  -- Removes the places of processes that let a lease run out, given their channels and when, in ms: they are frozen or gone, and each of
  -- their waiters would cost a first lease more. A process that claimed after that time lives, and so does `me`.
  -- Looks at the first places of the queue only: one behind them costs a first lease more when its turn comes.
  local function purge(silent, me)
    silent[me], silent['-'] = nil, nil
    if not next(silent) then
      return
    end
    local places = {}
    walk(function(id, waiter)
      local channel = waiter and waiter.channel
      local after = silent[channel or '-']
      if after == LAPSED then
        -- A waiter claims three times in a heartbeat.
        after = now / 1000 - waiter.heartbeat_ms * 2 / 3
      end
      -- A claim from a time to come is from before the clock was set back; half a ms is from rounding.
      if after and waiter.claimed_ms > after and waiter.claimed_ms * 1000 <= now + 1000 then
        silent[channel], places[channel] = nil, nil
      elseif after then
        places[channel] = places[channel] or {}
        table.insert(places[channel], id)
      end
      return not next(silent)
    end)
    for channel, ids in pairs(places) do
      drop(ids)
      -- In case the process lives after all.
      publish(channel, 'retry ' .. table.concat(ids, ' '))
    end
  end

  -- Returns the mode of a group; nil when the value is not that of one.
  local function read_group(value)
    group = string.match(value, '^distlock group (%S+)$')
    return group
  end

  -- Returns the key of a group that is of another type, if one is.
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

  -- The same, but nil when its lease is over.
  local function read_inside(id)
    local ends = read('ZSCORE', leases, id)
    return type(ends) == 'string' and tonumber(ends) >= now_ms and read_holder(id) or nil
  end

  -- Makes the keys of a group last as long as the longest lease, and no longer.
  local function keep_group()
    local last = redis.call('ZRANGE', leases, -1, -1, 'WITHSCORES')
    local left = string.format('%.0f', math.max(1, tonumber(last[2]) - now_ms))
    redis.call('PEXPIRE', lock, left)
    redis.call('PEXPIRE', holders, left)
    redis.call('PEXPIRE', leases, left)
  end

  -- Called after a holder left. Returns false when the group is empty, and the lock is free.
  local function settle_group()
    if redis.call('ZCARD', leases) == 0 then
      redis.call('DEL', lock, holders, leases)
      group = nil
      return false
    end
    keep_group()
    return true
  end

  -- Removes what is left of a group whose lock was deleted by hand.
  local function forget_group()
    group = nil
    if redis.call('EXISTS', holders, leases) > 0 then
      redis.call('DEL', holders, leases)
    end
  end

  -- Notes the holder whose lease decides when the lock is free.
  local function note_longest()
    local last = redis.call('ZRANGE', leases, -1, -1, 'WITHSCORES')
    local holder = last[1] and read_holder(last[1])
    if holder then
      note_holder(holder.channel, math.max(0, tonumber(last[2]) - now_ms), holder.text, 'g')
    else
      note_holder(nil)
    end
  end

  -- Returns how many holders a group may have.
  local function size_of(mode)
    return tonumber(string.match(mode, '^p(%d+)$')) or math.huge
  end

  -- Returns whether a claim may be beside the holders of the group if there is room; if not, the mode that it disagrees with. The sizes
  -- of two permits may differ if the records of both say that they resize the semaphore.
  local function goes_with(mode, text)
    if group == mode or string.sub(mode, 1, 1) ~= 'p' or string.sub(group, 1, 1) ~= 'p' then
      return group == mode, group
    end
    local RESIZES, is_one_size = '"resizes":true', true
    local may_differ = string.find(text, RESIZES, 1, true)
    local ids = redis.call('ZRANGE', leases, 0, -1)
    for _, entry in ipairs(ids[1] and redis.call('HMGET', holders, unpack(ids)) or {}) do
      local size = entry and string.match(entry, '"slot":{"of":(%d+)}')
      if size and 'p' .. size ~= mode then
        is_one_size = false
        if not may_differ or not string.find(entry, RESIZES, 1, true) then
          return false, 'p' .. size
        end
      end
    end
    if is_one_size then
      -- The others have left.
      group = mode
    end
    return true
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

  -- Extends a lease of a group. A lease is never made shorter.
  local function extend(id, lease_ms)
    local ends = now_ms + lease_ms
    if tonumber(redis.call('ZSCORE', leases, id) or 0) < ends then
      redis.call('ZADD', leases, string.format('%.0f', ends), id)
    end
    keep_group()
  end

  -- Writes the entry of a holder. Returns the server's refusal, if it refuses.
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

  -- Adds a holder to a group, its first or one more. Returns its slot, '-' where there are none; nil when there is no room, and the
  -- server's refusal, if it refuses.
  local function enter(mode, id, token, lease_ms, channel, text)
    local of, slot = size_of(mode), '-'
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
    group = (not group or group == mode) and mode or string.format('p0%d', math.max(size_of(group), of))
    redis.call('SET', lock, 'distlock group ' .. group, 'PX', lease_ms)
    keep_group()
    return slot
  end

  -- Removes a holder; the caller settles.
  local function leave(id)
    local holder = read_holder(id)
    if holder and holder.slot ~= '-' then
      redis.call('HDEL', holders, '#' .. holder.slot)
    end
    redis.call('HDEL', holders, id)
    redis.call('ZREM', leases, id)
  end

  -- Removes the holders whose lease is over. Returns of each channel for `purge` after which time a claim shows that it lives, and whether
  -- there were any; the caller settles.
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

  -- Returns the digits of the token for one more holder: a new one, but the owner's for its entries. Refusals as in `next_token`.
  local function token_for(mode)
    local first = string.sub(mode, 1, 1) == 'r' and redis.call('ZRANGE', leases, 0, 0)[1]
    local inside = first and read_holder(first)
    if inside then
      return inside.token
    elseif spare_token then
      return spare_token
    end
    local token, digits = next_token(lock, fence, now, now_digits)
    if not token then
      return nil, digits
    end
    spare_token = digits
    return digits
  end

  -- Adds the sender of a claim to a group; the caller has seen that it may enter. Returns the outcome; nil when there is no slot.
  local function join(mode, id, lease_ms, channel, text)
    local token, refusal = token_for(mode)
    if not token then
      return refusal
    end
    local slot, refused = enter(mode, id, token, lease_ms, channel, text)
    spare_token = nil
    return slot and { 'granted', tonumber(token), slot } or refused
  end

  -- Sends a message to a waiter's process. Returns whether it is heard; nil when it cannot be sent.
  local function send(channel, message)
    if deaf[channel] then
      return false
    end
    local heard = publish(channel, message)
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

  -- Adds a waiter to a group and tells it. Returns as `tell`; a waiter that does not hear it is removed again.
  local function hand_place(waiter)
    local token = token_for(waiter.mode)
    local slot = token
      and enter(waiter.mode, waiter.id, token, waiter.first_ms + waiter.delay_ms, waiter.channel, waiter.text)
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

  -- Lets waiters into the group that holds the lock: the head of the queue as long as there is room for it, and entries of the owner
  -- wherever they stand. Each permit counts the holders by its own size. `mode` is that of `me`, or of a holder. Returns whether it is the
  -- turn of `me`, which stays out; whether the head of the queue should look for itself; and whether that is because a bound ended this, so
  -- that another call gets further.
  local function let_in(mode, me)
    local is_of_owner = string.sub(mode, 1, 1) == 'r'
    local most, inside = size_of(mode), redis.call('ZCARD', leases)
    local gone, is_mine, is_more, entered = {}, false, false, 0
    local is_stopped = false
    local is_cut = walk(function(id, waiter, is_foreign)
      local is_full = inside >= most and (not waiter or inside >= size_of(waiter.mode))
      if is_full or id == me or is_foreign then
        is_mine, is_more = id == me and not is_full and not is_stopped, is_stopped
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
      if inside >= size_of(waiter.mode) then
        is_more = false
      elseif not goes_with(waiter.mode, waiter.text) then
        -- A permit is refused when it claims.
        is_more = most < math.huge
      elseif waiter.channel == '-' then
        is_more = true
      else
        heard = hand_place(waiter)
        is_more = is_more or heard == nil
      end
      if heard then
        inside, entered = inside + 1, entered + 1
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

  -- Returns one holder of a group as the value of a lock would show it, and what is left of its lease: of the one whose lease ends first,
  -- or last.
  local function show_one(place)
    local found = read('ZRANGE', leases, place, place, 'WITHSCORES')
    local holder = found[1] and read_holder(found[1])
    if holder then
      local shown = table.concat({ holder.id, holder.token, holder.channel, holder.text }, ' ')
      return string.sub(shown, 1, 4096), tonumber(found[2]) - now_ms
    end
  end

  -- Gives a waiter the lock for itself and tells it. Returns as `tell`; the lock stays set when the message is not heard.
  local function hand_lock(waiter, mark)
    local token = token_for(waiter.mode)
    local lease_ms = waiter.first_ms + waiter.delay_ms
    if not token or set_lock(waiter.id, mark, token, waiter.channel, waiter.text, lease_ms).err then
      return nil
    end
    return tell(waiter, token, '-')
  end

  -- Looks for the next waiter that lives and gives it the lock, which must be free or the caller's own. Reads before it writes: a key of
  -- another type ends it. Returns:
  --   'handed'  a waiter has the lock and was told; by itself, or as the first of a group
  --   'mine'    the next is `me`; nothing is set for it yet
  --   'left'    the next one only polls, or cannot be given the lock now; the lock is free for it
  --   'more'    all that one call looks at are gone, and there are more: the lock is free, and no newcomer's
  --   'nobody'  the queue has no waiter that lives
  -- and the waiters that are gone, which the caller drops; and the waiter that got it.
  local function pass_on(me)
    local gone, set = {}, false
    local outcome, taker = 'nobody', nil
    local is_cut = walk(function(id, waiter, is_foreign, behind)
      if id == me then
        outcome = outcome == 'more' and 'more' or 'mine'
        return true
      elseif is_dead(waiter, is_foreign) then
        gone[#gone + 1] = id
        return false
      elseif outcome == 'more' or unheard >= most_unheard then
        -- No other channel is tried. The dead behind it are dropped all the same, or there would be too many of them.
        outcome = 'more'
        return false
      end
      local heard = nil
      if is_foreign or waiter.channel == '-' or waiter.mode ~= 'x' and foreign_companion() then
        heard = nil
      elseif waiter.mode == 'x' then
        heard, set = hand_lock(waiter, behind and '+' or ' '), true
      else
        forget_group()
        heard = hand_place(waiter)
      end
      if heard == nil then
        outcome = 'left'
        return true
      end
      gone[#gone + 1] = id
      if heard then
        outcome, taker = 'handed', waiter
      end
      return heard
    end)
    if is_cut then
      outcome = 'more'
    end
    if set and outcome ~= 'handed' then
      redis.call('DEL', lock)
    end
    return outcome, gone, taker
  end

  -- Tells the first waiter that hears it to claim, when the lock could not be handed over. Returns which waiter that is, or the one that
  -- only polls; '' when there is none among those that one call looks at.
  local function poke()
    local told, most = '', math.max(most_unheard, unheard + LEAST_UNHEARD)
    walk(function(id, waiter)
      if waiter and (waiter.channel == '-' or send(waiter.channel, 'retry ' .. id) ~= false) then
        told = id
      end
      return told ~= '' or unheard >= most
    end)
    return told
  end

  -- Notes the holder `taker`, to whom the lock was handed over.
  local function note_taker(taker)
    if taker then
      note_holder(taker.channel, taker.lease_ms, taker.text, 'h')
    else
      note_holder(nil)
    end
  end

  -- Lets waiters in beside the holders of a group. Returns as `give_away`.
  local function make_room(mode)
    local _, is_more, is_cut = let_in(mode, nil)
    if not is_more then
      return ''
    end
    local told = poke()
    return told == '' and is_cut and redis.call('EXISTS', queue) == 1 and 'more' or told
  end

  -- Ends the hold that the caller has checked: the next waiter gets the lock, or it is free. Returns the attempt that must claim it then
  -- without having been told; 'more' when only dead waiters were found, and the caller must call again.
  local function give_away()
    local outcome, gone, taker = pass_on(nil)
    if outcome ~= 'handed' then
      redis.call('DEL', lock)
    end
    if #gone > 0 or outcome == 'left' then
      drop(gone)
      note_taker(taker)
    end
    if taker and taker.mode ~= 'x' then
      return make_room(taker.mode)
    elseif outcome == 'left' then
      return poke()
    elseif outcome == 'more' then
      -- In case the caller does not come back.
      poke()
      return 'more'
    end
    return ''
  end

  -- Called after holders have left a group: lets in the waiters that may enter. Returns as `give_away`. The process behind the channel
  -- `me` lives.
  local function follow(mode, me)
    local silent = drop_expired()
    purge(silent, me)
    if not settle_group() then
      return give_away()
    elseif redis.call('EXISTS', queue) == 1 then
      note_longest()
      return make_room(mode)
    end
    return ''
  end

  return {
    read_lock = read_lock,
    read_value = read_value,
    set_lock = set_lock,
    publish = publish,
    read_waiter = read_waiter,
    drop = drop,
    note_holder = note_holder,
    read_note = read_note,
    purge = purge,
    read_group = read_group,
    foreign_companion = foreign_companion,
    read_inside = read_inside,
    settle_group = settle_group,
    forget_group = forget_group,
    note_longest = note_longest,
    size_of = size_of,
    goes_with = goes_with,
    extend = extend,
    write_holder = write_holder,
    leave = leave,
    drop_expired = drop_expired,
    join = join,
    let_in = let_in,
    show_one = show_one,
    pass_on = pass_on,
    poke = poke,
    note_taker = note_taker,
    make_room = make_room,
    give_away = give_away,
    follow = follow,
  }
end
