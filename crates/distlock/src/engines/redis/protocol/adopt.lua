-- KEYS: lock, queue, waiters, fence, holders, leases; ARGV: nonce, attempt, lease_ms, record, wake, not_after_us, word, old attempt, token; reply: nonce, now_us, 'adopted', slot ('-': none) | 'not held' | 'late'
local attempt, lease_ms, record, wake = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local word, from, token = ARGV[7], ARGV[8], ARGV[9]
if now > tonumber(ARGV[6]) then
  return { nonce, now, 'late' }
end
local held = read_lock()
local inside = held and read_group(held)

-- Who had it before finds out by its renewal, if it does not hear this.
local function tell_adopted(channel)
  redis.pcall('PUBLISH', 'distlock:wake:' .. channel, 'adopted ' .. from)
end

if inside then
  local holder = inside == word and (read_inside(attempt) or read_inside(from))
  if not holder or holder.token ~= token then
    return { nonce, now, 'not held' }
  end
  local channel = holder.channel
  if holder.id == from then
    local ends = redis.call('ZSCORE', leases, from)
    holder.id, holder.channel, holder.text = attempt, wake, record
    local refused = write_holder(holder)
    if refused then
      return refused
    end
    redis.call('ZADD', leases, ends, attempt)
    redis.call('HDEL', holders, from)
    redis.call('ZREM', leases, from)
    tell_adopted(channel)
  end
  extend(attempt, lease_ms)
  return { nonce, now, 'adopted', holder.slot }
end
local id, its_token, channel = read_value(held or '')
if word ~= 'x' or its_token ~= token or id ~= from and id ~= attempt then
  return { nonce, now, 'not held' }
end
local left = math.max(lease_ms, redis.call('PTTL', lock))
local set = set_lock(attempt, string.sub(held, 33, 33), token, wake, record, string.format('%.0f', left))
if set.err then
  return set
end
if id == from then
  if redis.call('EXISTS', queue) == 1 then
    note_holder(wake, left, record, 'g')
  end
  tell_adopted(channel)
end
return { nonce, now, 'adopted', '-' }
