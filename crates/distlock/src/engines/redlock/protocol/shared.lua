-- Begins break, and the round behind `alone`. KEYS and ARGV: what each says; reply: none.
-- The attempt and the ballot in a value of ours; nil for everybody else's.
local function read_value(value)
  local id, ballot = string.match(value, '^(%x+) (%d+) ')
  if id and #id == 32 then
    return id, tonumber(ballot)
  end
end

-- From now on nothing with `ballot` or below is accepted here: neither a claim that comes late nor a renewal that would
-- heal what was released. `last` is what the fence says; one that is not ours is left alone.
local function bury(fence, last, ballot)
  if last == ballot then
    redis.pcall('INCR', fence)
  elseif last and last < ballot then
    redis.pcall('SET', fence, string.format('%.0f', ballot + 1), 'PX', 604800000)
  end
end

-- A hold is ended by force. Its holder does not know of it, and may go by a ballot that it hears later: for longer than its
-- lease, never again.
local function mark_forced(fence, ballot)
  local ended = redis.pcall('GET', fence .. ':f')
  if type(ended) ~= 'string' or (tonumber(ended) or 0) < ballot then
    redis.pcall('SET', fence .. ':f', string.format('%.0f', ballot), 'PX', 604800000)
  end
end

-- Gives up the place of `attempt`. Answers whether it was the first.
local function leave(queue, waiters, attempt)
  local place = redis.pcall('ZRANK', queue, attempt)
  if type(place) == 'number' then
    redis.call('ZREM', queue, attempt)
    redis.pcall('HDEL', waiters, attempt)
  end
  return place == 0
end

-- Tells the one who has waited longest that the lock is free; drops up to 32 who are gone.
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
    -- One that only polls is left to its next look.
    if is_alive and channel ~= '-' then
      local heard = redis.pcall('PUBLISH', 'distlock:wake:' .. channel, 'retry ' .. attempt)
      if type(heard) == 'table' or heard > 0 then
        return
      end
      is_alive = false
    end
    if not is_alive then
      leave(queue, waiters, attempt)
    end
  end
end
