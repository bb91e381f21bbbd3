-- A place in the queue. KEYS, ARGV, reply: as in claim.lua.
local word, heartbeat_ms, delay_ms = string.match(how, '^(%S+) (%d+) (%d+)$')

-- Makes a key of the queue last for this heartbeat. Never shorter than it does: a waiter with a longer one may stand in it.
-- Never longer than the longest either, which happens where the clock was set back: nothing of the queue is there for good.
local function keep_key(key)
  local left, heartbeat = redis.call('PTTL', key), tonumber(heartbeat_ms)
  local longest = math.max(heartbeat, LONGEST_HEARTBEAT_MS)
  if left < heartbeat then
    redis.call('PEXPIRE', key, heartbeat_ms)
  elseif left > longest then
    redis.call('PEXPIRE', key, string.format('%.0f', longest))
  end
end

-- Takes a place, or keeps the one it has, behind a lock as it was read. Answers the place, -1 for those who do not queue;
-- nil and the outcome when there is none to take.
local function enqueue(held, held_type)
  if heartbeat_ms == '0' then
    return -1
  end
  local last = redis.pcall('ZRANGE', queue, '-1', '-1', 'WITHSCORES')
  if last.err then
    return nil, { 'foreign', queue }
  end
  local ticket = now_digits
  if (tonumber(last[2]) or 0) >= now then
    ticket = string.format('%.0f', last[2] + 1)
  end
  local ttl_ms, alive_until = tonumber(lease_ms) - tonumber(delay_ms), now / 1000 + tonumber(heartbeat_ms)
  local entry = string.format('%d %.0f %s %s %s ', ttl_ms, alive_until, wake, delay_ms, word) .. record
  -- A repeat keeps its place.
  redis.call('ZADD', queue, 'NX', ticket, attempt)
  if type(redis.pcall('HSET', waiters, attempt, entry)) == 'table' then
    redis.call('ZREM', queue, attempt)
    return nil, { 'foreign', waiters }
  end
  local place = redis.call('ZRANK', queue, attempt)
  keep_key(queue)
  keep_key(waiters)
  if held_type == 'string' and string.sub(held, 33, 33) == ' ' and read_value(held) then
    redis.call('SETRANGE', lock, '32', '+')
  end
  return place
end

local held, held_type = read_lock()
local holder = word == 'x' and held and read_value(held)
if holder and holder ~= attempt then
  -- Somebody has it alone: nothing else is to be looked at.
  local place, refused = enqueue(held, held_type)
  return refused or { 'busy', redis.call('PTTL', lock), place, held, held_type }
end
