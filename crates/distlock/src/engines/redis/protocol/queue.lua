-- The lock and those who wait for it. KEYS, ARGV: as in head.lua; reply: none.

-- A grant that was handed over lasts this long at first, so that a frozen process costs the others little.
local FIRST_LEASE_MS = 1000
-- A waiter keeps its place for its ttl, within these bounds; `heartbeat` in redis.rs.
local SHORTEST_HEARTBEAT_MS, LONGEST_HEARTBEAT_MS = 3000, 30000
-- What is left of the call's bound.
local most_unheard = math.max(MOST_UNHEARD, unheard + LEAST_UNHEARD)

-- What the lock holds: nil when it is free, and its type. Not all of it: somebody may keep a film there.
local function read_lock()
  local value = read('GETRANGE', lock, '0', '4095')
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

-- Parses what a waiter asked for; nil when the waiter is gone.
local function read_entry(id, entry)
  local ttl, alive_until, channel, delay, word, text
  if entry then
    ttl, alive_until, channel, delay, word, text = string.match(entry, '^(%d+) (%d+) (%S+) (%d+) (%S+) ({.*)$')
  end
  if ttl and tonumber(alive_until) * 1000 > now then
    local ttl_ms, delay_ms = tonumber(ttl), tonumber(delay)
    local first_ms = math.min(ttl_ms, FIRST_LEASE_MS)
    local waiter = { id = id, first_ms = first_ms, delay_ms = delay_ms, channel = channel, word = word, text = text }
    waiter.lease_ms = ttl_ms + delay_ms
    waiter.heartbeat_ms = math.min(math.max(ttl_ms, SHORTEST_HEARTBEAT_MS), LONGEST_HEARTBEAT_MS)
    waiter.claimed_ms = tonumber(alive_until) - waiter.heartbeat_ms
    return waiter
  end
end

-- What a waiter asked for; nil when it is gone. The second answer says that its key is of another type.
local function read_waiter(id)
  local entry = read('HGET', waiters, id)
  if type(entry) == 'table' then
    return nil, true
  end
  return read_entry(id, entry)
end

-- Calls `visit` for the places of the queue, from its head on, until that returns true: with the id, the waiter (nil when it
-- is gone), whether the waiters' key is of another type, and the id behind. The caller drops places afterwards. Returns true
-- when there are more places than one call looks at.
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

-- Whether a waiter that `walk` found is gone: its heartbeat has passed, or its channel has no listener.
local function is_dead(waiter, is_foreign)
  return not is_foreign and (not waiter or deaf[waiter.channel] == true)
end

-- Takes places away.
local function drop(gone)
  for from = 1, #gone, 500 do
    local till = math.min(from + 499, #gone)
    redis.call('ZREM', queue, unpack(gone, from, till))
    redis.call('HDEL', waiters, unpack(gone, from, till))
  end
end

-- Whether a holder's lease may run out while its process lives: its record says so.
local function lapses(text)
  return string.find(text, '"lapses":true', 1, true) ~= nil
end

-- Notes who got the lock last: channel, when, lease_ms, and how: 'h' it was handed over, 'g' it was claimed, 'l' it may lapse.
-- Without any place left, nothing of the queue stays.
local function note_holder(channel, lease_ms, text, how_given)
  if redis.call('EXISTS', queue) == 0 then
    redis.call('DEL', waiters)
  elseif channel and channel ~= '-' and redis.call('EXISTS', waiters) == 1 then
    -- Whoever finds this lease run out knows whose waiters not to try next.
    local kind = how_given .. (lapses(text) and 'l' or '')
    redis.pcall('HSET', waiters, 'handed', string.format('%s %.0f %.0f %s', channel, now / 1000, lease_ms, kind))
  else
    redis.pcall('HDEL', waiters, 'handed')
  end
end

-- The time of a lease that was perhaps meant to run out: that by itself is no sign that its process is frozen.
local LAPSED = 0

-- Returns for `purge` the channel of a holder whose lease ran out, and the time in ms after which a claim shows that its
-- process lives. None where the lease ran out as it was meant to.
local function read_note(note)
  local channel, since, lease_ms, kind = string.match(note, '^(%S+) (%d+) (%d+) (%a+)$')
  if not channel then
    -- As older versions note it.
    return { [note] = math.huge }
  end
  local now_ms = now / 1000
  -- Then it is the first lease that ran out, and was not renewed: a renewal would last until then at least.
  local is_first = string.sub(kind, 1, 1) == 'h' and now_ms < since + lease_ms
  if string.sub(kind, 2) == 'l' then
    -- Its holder may have lost it before the first renewal.
    return is_first and { [channel] = LAPSED } or {}
  end
  -- A keeper renews twice and more in half of a lease.
  return { [channel] = is_first and tonumber(since) or now_ms - lease_ms / 2 }
end

-- Takes the places of those who let a lease run out, given their channels and when, in ms: their processes are frozen or
-- gone, and each of their waiters would cost a first lease more. One that claimed after that time lives, and so does `me`.
-- Goes by the first places of the queue: what stands behind them costs a first lease more when it comes to it.
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
    -- One from a time to come is from before the clock was set back; half a ms is from rounding.
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
    -- In case it lives after all.
    redis.pcall('PUBLISH', 'distlock:wake:' .. channel, 'retry ' .. table.concat(ids, ' '))
  end
end
