-- KEYS: node's note, then lock, queue, waiters, fence of each request; ARGV: nonce, run_id ('': no restart guard), then of each request 'claim' or 'release' and what that function below takes; reply: nonce, now_us, the node's note ('': none), then the reply to each request
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- The last ballot of each lock by its fence, and the node's note, read at once. `false`: the fence is not ours.
local fences, names = {}, { KEYS[1] }
for i = 5, #KEYS, 4 do
  names[#names + 1] = KEYS[i]
end
local found = redis.call('MGET', unpack(names))
local note = found[1]
for i = 2, #names do
  local last = found[i]
  if not last then
    -- Missing, or of another type.
    last = redis.pcall('GET', names[i]) == false and 0
  end
  fences[names[i]] = tonumber(last) or false
end

-- The node's note.
local run_id, born, leapt, quarantine_end, leases_end, max_lease, is_cut = nil, 0, 0, 0, math.huge, math.huge, false
if ARGV[2] ~= '' then
  run_id, born, leapt, quarantine_end, leases_end, max_lease, is_cut = read_note(found[1], now)
end

-- Returns why this node does not vote at all; nil when it does.
local function abstention()
  if ARGV[2] == '' then
    return
  end
  if run_id ~= ARGV[2] then
    if not found[1] and redis.pcall('GET', KEYS[1]) then
      return { 'foreign', KEYS[1] }
    end
    return { 'fresh' }
  end
  if now < quarantine_end then
    if is_cut then
      note = write_note(KEYS[1], run_id, born, leapt, quarantine_end, leases_end, max_lease)
    end
    return { 'quarantined', math.ceil((quarantine_end - now) / 1000) }
  end
end

-- The lock is held by another owner. A waiter enters the queue, or stays in it, so that a release can notify it.
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
    -- The queue does not outlive the heartbeat of its last waiter.
    if redis.call('PTTL', waiters) < heartbeat_ms then
      redis.call('PEXPIRE', queue, heartbeat_ms)
      redis.call('PEXPIRE', waiters, heartbeat_ms)
    end
  end
  return { 'held', redis.call('PTTL', lock), place, value, redis.call('TYPE', lock).ok }
end

-- Returns the vote: 'ack' | 'low', ballot | 'held', pttl_ms, place (-1: none), value, type | 'late' | 'ahead' | 'fresh' | 'quarantined', left_ms | 'foreign', key | 'error', text.
-- `heartbeat_ms` is 0 for a claim that does not queue, `is_queued` is 1 for one that was told to.
local function claim(lock, queue, waiters, fence, attempt, ballot, ttl_ms, rest, heartbeat_ms, ticket_us, is_queued, not_after_us)
  -- The sender has given the claim up, and may have released it over another connection.
  if now > tonumber(not_after_us) then
    return { 'late' }
  end
  local digits, last = ballot, fences[fence]
  ballot = tonumber(ballot)
  -- Why the claim is not granted even if the lock is free.
  local refusal
  if ballot > now + MAX_AHEAD_US then
    -- A ballot from a clock that far ahead would raise every later ballot.
    refusal = { 'ahead' }
  elseif not last then
    refusal = { 'foreign', fence }
  else
    refusal = abstention()
    -- The node may have lost higher ballots from before `born`.
    if not refusal and (ballot <= last or ballot <= born) then
      refusal = { 'low', string.format('%.0f', math.max(last, born)) }
    end
  end
  local value = attempt .. ' ' .. digits .. ' ' .. rest
  local set = not refusal and redis.pcall('SET', lock, value, 'NX', 'PX', ttl_ms)
  if set and set.err then
    -- The first write shows whether the server has the memory, and the client the right, to write.
    return { 'error', set.err }
  end
  if not set then
    -- Not the whole value: a key that is not ours may hold gigabytes.
    local held = redis.pcall('GETRANGE', lock, 0, 4095)
    if type(held) == 'table' then
      return held_by_another('', lock, queue, waiters, attempt, ttl_ms, rest, heartbeat_ms, ticket_us)
    end
    if string.sub(held, 1, 33) ~= attempt .. ' ' then
      if held ~= '' or not refusal then
        -- An empty string is a value of another owner.
        return held_by_another(held, lock, queue, waiters, attempt, ttl_ms, rest, heartbeat_ms, ticket_us)
      end
      return refusal
    end
    -- The attempt's own hold, perhaps from before the node's quarantine began.
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
  redis.call('SET', fence, digits, 'PX', FENCE_TTL_MS)
  fences[fence] = ballot
  if run_id == ARGV[2] and (now + ttl_ms * 1000 > leases_end or ttl_ms * 1000 > max_lease) then
    -- A quarter ahead, so that the note is not written for each lock.
    leases_end, max_lease = math.max(leases_end, now + ttl_ms * 1250), math.max(max_lease, ttl_ms * 1250)
    note = write_note(KEYS[1], run_id, born, leapt, quarantine_end, leases_end, max_lease)
  end
  if is_queued == '1' then
    redis.pcall('ZREM', queue, attempt)
    redis.pcall('HDEL', waiters, attempt)
  end
  return { 'ack' }
end

-- Returns 'released' | 'not ours'. `ballot` is 0 when it is not known, `may_be_queued` is 1 for an attempt that may be in the
-- queue, `notify` is 1 to notify the next waiter, `ends` is 0 for a claim that is given up, 1 for a hold, and 2 for a hold that
-- is ended by force.
local function release(lock, queue, waiters, fence, attempt, ballot, may_be_queued, notify, ends)
  ballot = tonumber(ballot)
  -- Enough for the attempt and the ballot.
  local held = redis.pcall('GETRANGE', lock, 0, 63)
  local is_mine = type(held) == 'string' and string.sub(held, 1, 33) == attempt .. ' '
  if is_mine then
    local _, stored = read_value(held)
    -- The release is for one ballot. The attempt may have been granted with a higher one since.
    is_mine = ballot == 0 or (stored or 0) <= ballot
    ballot = ballot == 0 and stored or ballot
  end
  local last = fences[fence]
  if ballot > 0 and last and last > ballot and ends ~= '0' then
    -- Other claims were voted for since. A renewal that is about to set the hold again goes by their ballot, so that moves, too.
    redis.pcall('INCR', fence)
    fences[fence] = last + 1
  elseif ballot > 0 then
    bury(fence, last, ballot)
    fences[fence] = last and math.max(last, ballot + 1)
  end
  if ballot > 0 and ends == '2' then
    mark_forced(fence, ballot)
  end
  local was_first = may_be_queued == '1' and leave(queue, waiters, attempt)
  if not is_mine then
    -- Perhaps only this waiter was notified that the lock is free.
    if was_first and held == '' then
      wake_next(queue, waiters)
    end
    return { 'not ours' }
  end
  redis.call('DEL', lock)
  if notify == '1' then
    wake_next(queue, waiters)
  end
  return { 'released' }
end

local reply, at = { ARGV[1], now, '' }, 3
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
reply[3] = note or ''
return reply
