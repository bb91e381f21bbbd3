-- Shared functions, which stand before a script. KEYS and ARGV: as the script says; reply: none.
local FENCE_TTL_MS = 604800000
local MAX_AHEAD_US = 86400000000

-- A node's note is `run_id born_us leapt_us quarantine_end_us leases_end_us max_lease_us`: the server's run, since when it
-- knows its ballots, when a leap of its clock was last handled, until when it does not vote, when its last lease ends, and
-- how long leases are at the most. No lease that runs now ends later than `max_lease_us` from now: where the clock went
-- back, both ends are cut to that, and the last value returned is true.
local function read_note(text, now)
  local run_id, born, leapt, quarantine_end, leases_end, max_lease =
    string.match(text or '', '^(%x+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  if run_id then
    local latest = now + max_lease
    local is_cut = tonumber(quarantine_end) > latest
    quarantine_end, leases_end = math.min(quarantine_end, latest), math.min(leases_end, latest)
    return run_id, tonumber(born), tonumber(leapt), quarantine_end, leases_end, tonumber(max_lease), is_cut
  end
end

-- Returns the note's text.
local function write_note(key, run_id, born, leapt, quarantine_end, leases_end, max_lease)
  local note = string.format('%s %.0f %.0f %.0f %.0f %.0f', run_id, born, leapt, quarantine_end, leases_end, max_lease)
  redis.call('SET', key, note)
  return note
end

-- Returns the attempt and the ballot in a value of ours; nil for any other value.
local function read_value(value)
  local attempt, ballot = string.match(value, '^(%x+) (%d+) ')
  if attempt and #attempt == 32 then
    return attempt, tonumber(ballot)
  end
end

-- From now on the node accepts nothing with `ballot` or below: neither a claim that comes late nor a renewal that would
-- set a released lock again. `last` is the fence's ballot; a fence that is not ours is left alone.
local function bury(fence, last, ballot)
  if last == ballot then
    redis.pcall('INCR', fence)
  elseif last and last < ballot then
    redis.pcall('SET', fence, string.format('%.0f', ballot + 1), 'PX', FENCE_TTL_MS)
  end
end

-- Records that a hold was ended by force. Its holder does not know that, and may renew by a ballot that it hears later. The
-- record outlives the lease, so no such renewal sets the lock again.
local function mark_forced(fence, ballot)
  local ended = redis.pcall('GET', fence .. ':f')
  if type(ended) ~= 'string' or (tonumber(ended) or 0) < ballot then
    redis.pcall('SET', fence .. ':f', string.format('%.0f', ballot), 'PX', FENCE_TTL_MS)
  end
end

-- Removes `attempt` from the queue. Returns whether it was the first.
local function leave(queue, waiters, attempt)
  local place = redis.pcall('ZRANK', queue, attempt)
  if type(place) == 'number' then
    redis.call('ZREM', queue, attempt)
    redis.pcall('HDEL', waiters, attempt)
  end
  return place == 0
end

-- Notifies the first waiter that the lock is free. Removes up to 32 waiters whose heartbeat or connection has ended.
local function wake_next(queue, waiters)
  if redis.call('EXISTS', queue) == 0 then
    return
  end
  local clock = redis.call('TIME')
  local now_ms = clock[1] * 1000 + clock[2] / 1000
  local waiting = redis.pcall('ZRANGE', queue, 0, 31)
  for _, attempt in ipairs(waiting) do
    local entry = redis.pcall('HGET', waiters, attempt)
    local alive_until, channel
    if type(entry) == 'string' then
      alive_until, channel = string.match(entry, '^%d+ (%d+) (%S+) ')
    end
    local is_alive = alive_until and tonumber(alive_until) > now_ms
    -- A waiter without a channel polls, and stays queued.
    if is_alive and channel ~= '-' then
      local receivers = redis.pcall('PUBLISH', 'distlock:wake:' .. channel, 'retry ' .. attempt)
      if type(receivers) == 'table' or receivers > 0 then
        return
      end
      is_alive = false
    end
    if not is_alive then
      leave(queue, waiters, attempt)
    end
  end
end
