-- KEYS: node, then lock, queue, waiters, fence of each request; ARGV: nonce, run_id ('': no restart guard), then of each request what `claim` or `release` below takes; reply: nonce, now_us (0: not read), then of each its answer
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- The last ballot of each lock by its fence, and the node's note, read at once. `false`: it is not ours.
local fences, names = {}, { KEYS[1] }
for i = 5, #KEYS, 4 do
  names[#names + 1] = KEYS[i]
end
local found = redis.call('MGET', unpack(names))
for i = 2, #names do
  local last = found[i]
  if not last then
    -- Nothing, or something of another type.
    last = redis.pcall('GET', names[i]) == false and 0
  end
  fences[names[i]] = tonumber(last) or false
end

-- What the node's note says.
local id, born, leapt, until_us, horizon, longest, is_shorter = nil, 0, 0, 0, math.huge, math.huge, false
if ARGV[2] ~= '' then
  id, born, leapt, until_us, horizon, longest, is_shorter = read_note(found[1], now)
end

local function write_note()
  redis.call('SET', KEYS[1], string.format('%s %.0f %.0f %.0f %.0f %.0f', id, born, leapt, until_us, horizon, longest))
end

-- Why this node does not vote at all; nil when it does.
local function abstains()
  if ARGV[2] == '' then
    return
  end
  if id ~= ARGV[2] then
    if not found[1] and redis.pcall('GET', KEYS[1]) then
      return { 'foreign', KEYS[1] }
    end
    return { 'fresh' }
  end
  if now < until_us then
    if is_shorter then
      write_note()
    end
    return { 'quarantined', math.ceil((until_us - now) / 1000) }
  end
end

-- Somebody else has it. A waiter takes its place, or keeps it, so that a release can tell it.
local function held_by_another(value, lock, queue, waiters, attempt, ttl_ms, rest, heartbeat_ms, ticket_us)
  local place = -1
  heartbeat_ms = tonumber(heartbeat_ms)
  if heartbeat_ms > 0 then
    local entry = string.format('%.0f %.0f %s', ttl_ms, now / 1000 + heartbeat_ms, rest)
    if type(redis.pcall('ZADD', queue, 'NX', ticket_us, attempt)) == 'table' then
      return { 'foreign', queue }
    end
    if type(redis.pcall('HSET', waiters, attempt, entry)) == 'table' then
      redis.call('ZREM', queue, attempt)
      return { 'foreign', waiters }
    end
    place = redis.call('ZRANK', queue, attempt)
    -- Nothing of the queue outlives the heartbeat of its last waiter.
    if redis.call('PTTL', waiters) < heartbeat_ms then
      redis.call('PEXPIRE', queue, heartbeat_ms)
      redis.call('PEXPIRE', waiters, heartbeat_ms)
    end
  end
  return { 'held', redis.call('PTTL', lock), place, value, redis.call('TYPE', lock).ok }
end

-- Votes: 'ack' | 'low', ballot | 'held', pttl_ms, place (-1: none), value, type | 'late' | 'ahead' | 'fresh' | 'quarantined', left_ms | 'foreign', key | 'error', text.
-- `heartbeat_ms` is 0 for who does not queue, `waits` is 1 for who has a place.
local function claim(lock, queue, waiters, fence, attempt, ballot, ttl_ms, rest, heartbeat_ms, ticket_us, waits, not_after_us)
  -- Its sender has given up on it, and perhaps released it already by another way.
  if now > tonumber(not_after_us) then
    return { 'late' }
  end
  local digits, last = ballot, fences[fence]
  ballot = tonumber(ballot)
  -- Why it is not granted even if it is free.
  local refusal
  if ballot > now + 86400000000 then
    -- A ballot from a clock that far ahead would be everybody's burden from then on.
    refusal = { 'ahead' }
  elseif not last then
    refusal = { 'foreign', fence }
  else
    refusal = abstains()
    -- Before the node was born it may have known of higher ballots than those that it has kept.
    if not refusal and (ballot <= last or ballot <= born) then
      refusal = { 'low', string.format('%.0f', math.max(last, born)) }
    end
  end
  local value = attempt .. ' ' .. digits .. ' ' .. rest
  local set = not refusal and redis.pcall('SET', lock, value, 'NX', 'PX', ttl_ms)
  if set and set.err then
    -- The first write decides whether there is memory to write, and the right to.
    return { 'error', set.err }
  end
  if not set then
    -- Not all of it: somebody may keep a film there.
    local held = redis.pcall('GETRANGE', lock, 0, 4095)
    if type(held) == 'table' then
      return held_by_another('', lock, queue, waiters, attempt, ttl_ms, rest, heartbeat_ms, ticket_us)
    end
    if string.sub(held, 1, 33) ~= attempt .. ' ' then
      if held ~= '' or not refusal then
        -- An empty string is something, too.
        return held_by_another(held, lock, queue, waiters, attempt, ttl_ms, rest, heartbeat_ms, ticket_us)
      end
      return refusal
    end
    -- The attempt's own, perhaps from before somebody saw that the node cannot vote.
    if refusal and refusal[1] ~= 'low' then
      return refusal
    end
    if ballot < last then
      return { 'low', string.format('%.0f', last) }
    end
    -- A lease is never made shorter.
    local lease = math.max(tonumber(ttl_ms), redis.call('PTTL', lock))
    set = redis.pcall('SET', lock, value, 'PX', string.format('%.0f', lease))
    if set.err then
      return { 'error', set.err }
    end
  end
  redis.call('SET', fence, digits, 'PX', 604800000)
  fences[fence] = ballot
  if id == ARGV[2] and (now + ttl_ms * 1000 > horizon or ttl_ms * 1000 > longest) then
    -- A quarter ahead, so that it need not be written for each lock.
    horizon, longest = math.max(horizon, now + ttl_ms * 1250), math.max(longest, ttl_ms * 1250)
    write_note()
  end
  if waits == '1' then
    redis.pcall('ZREM', queue, attempt)
    redis.pcall('HDEL', waiters, attempt)
  end
  return { 'ack' }
end

-- Answers: 'released' | 'not ours'. `ballot` is 0 when it is not known, `waits` is 1 for who may have a place, `wake` is 1
-- to tell the next, `ends` is 0 for a claim that is given up, 1 for a hold, and 2 for a hold that is ended by force.
local function release(lock, queue, waiters, fence, attempt, ballot, waits, wake, ends)
  ballot = tonumber(ballot)
  -- Enough to see whose it is, and the ballot.
  local held = redis.pcall('GETRANGE', lock, 0, 63)
  local is_mine = type(held) == 'string' and string.sub(held, 1, 33) == attempt .. ' '
  if is_mine then
    local _, stored = read_value(held)
    -- What is taken back is a ballot. The attempt may have been granted with a higher one since.
    is_mine = ballot == 0 or (stored or 0) <= ballot
    ballot = ballot == 0 and stored or ballot
  end
  local last = fences[fence]
  if ballot > 0 and last and last > ballot and ends ~= '0' then
    -- Others were here since. A renewal that is about to set the hold again goes by their ballot, so that moves, too.
    redis.pcall('INCR', fence)
    fences[fence] = last + 1
  elseif ballot > 0 then
    bury(fence, last, ballot)
    fences[fence] = last and math.max(last, ballot + 1)
  end
  if ballot > 0 and ends == '2' then
    mark_forced(fence, ballot)
  end
  local was_first = waits == '1' and leave(queue, waiters, attempt)
  if not is_mine then
    -- Perhaps it was told that the lock is free, and nobody else was.
    if was_first and held == '' then
      wake_next(queue, waiters)
    end
    return { 'not ours' }
  end
  redis.call('DEL', lock)
  if wake == '1' then
    wake_next(queue, waiters)
  end
  return { 'released' }
end

local reply, at = { ARGV[1], now }, 3
for i = 2, #KEYS, 4 do
  local lock, queue, waiters, fence = KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3]
  if ARGV[at] == 'claim' then
    reply[#reply + 1] = claim(lock, queue, waiters, fence, unpack(ARGV, at + 1, at + 8))
    at = at + 9
  else
    reply[#reply + 1] = release(lock, queue, waiters, fence, unpack(ARGV, at + 1, at + 5))
    at = at + 6
  end
end
return reply
