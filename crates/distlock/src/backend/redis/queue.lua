-- The lock and those who wait for it. KEYS, ARGV: as in head.lua; reply: none.

-- A grant that was handed over lasts this long at first, so that a frozen process costs the others little.
local FIRST_LEASE_MS = 1000
-- How many waiters that are gone one call drops, and how many it lets in.
local MOST_GONE = 32

-- What the lock holds: nil when it is free, and its type. Not all of it: somebody may keep a film there.
local function read_lock()
  local value = redis.pcall('GETRANGE', lock, '0', '4095')
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

-- What a waiter asked for; nil when it is gone. The second answer says that its key is of another type.
local function read_waiter(id)
  local entry = redis.pcall('HGET', waiters, id)
  if type(entry) == 'table' then
    return nil, true
  end
  local ttl, alive_until, channel, delay, word, text
  if entry then
    ttl, alive_until, channel, delay, word, text = string.match(entry, '^(%d+) (%d+) (%S+) (%d+) (%S+) ({.*)$')
  end
  if ttl and tonumber(alive_until) * 1000 > now then
    local first_ms = math.min(tonumber(ttl), FIRST_LEASE_MS)
    return { id = id, first_ms = first_ms, delay_ms = tonumber(delay), channel = channel, word = word, text = text }
  end
end

-- Takes places away.
local function drop(gone)
  for from = 1, #gone, 500 do
    local till = math.min(from + 499, #gone)
    redis.call('ZREM', queue, unpack(gone, from, till))
    redis.call('HDEL', waiters, unpack(gone, from, till))
  end
end

-- Notes who got the lock last. Without any place left, nothing of the queue stays.
local function note_holder(channel)
  if redis.call('EXISTS', queue) == 0 then
    redis.call('DEL', waiters)
  elseif channel and channel ~= '-' and redis.call('EXISTS', waiters) == 1 then
    -- Whoever finds this lease run out knows whose waiters not to try next.
    redis.pcall('HSET', waiters, 'handed', channel)
  else
    redis.pcall('HDEL', waiters, 'handed')
  end
end

-- Takes the places of those who let a lease run out, given their channels and when, in ms: their processes are frozen or
-- gone, and each of their waiters would cost a first lease more. Who took a place since then lives, and so does `me`.
local function purge(silent, me)
  silent[me], silent['-'] = nil, nil
  if not next(silent) then
    return
  end
  local places = {}
  local entries = redis.pcall('HGETALL', waiters)
  for i = 1, entries.err and 0 or #entries, 2 do
    local id, channel = entries[i], string.match(entries[i + 1], '^%d+ %d+ (%S+) ')
    local ended = channel and silent[channel]
    local ticket = ended and tonumber(redis.pcall('ZSCORE', queue, id)) or 0
    -- One from a time to come is from before the clock was set back.
    if ended and ticket / 1000 > ended and ticket <= now then
      silent[channel], places[channel] = nil, nil
    elseif ended then
      places[channel] = places[channel] or {}
      table.insert(places[channel], id)
    end
  end
  for channel, ids in pairs(places) do
    drop(ids)
    -- In case it lives after all.
    redis.pcall('PUBLISH', 'distlock:wake:' .. channel, 'retry ' .. table.concat(ids, ' '))
  end
end
