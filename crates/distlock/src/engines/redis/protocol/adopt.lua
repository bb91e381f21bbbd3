-- KEYS: lock, queue, waiters, fence, holders, leases; ARGV: nonce, attempt, lease_ms, record, wake, not_after_us, mode, old attempt, token; reply: nonce, now_us, 'adopted', slot ('-': none) | 'not held' | 'late'
if guard then
  guard().note_renewal()
end
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local now_digits = clock[1] .. string.rep('0', 6 - #clock[2]) .. clock[2]
local nonce, attempt, lease_ms, record, wake = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local mode, from, token = ARGV[7], ARGV[8], ARGV[9]
if now > tonumber(ARGV[6]) then
  return { nonce, now, 'late' }
end
local lock, queue, holders, leases = KEYS[1], KEYS[2], KEYS[5], KEYS[6]
local this = open_lock(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], now, now_digits)
local held = this.read_lock()
local inside = held and this.read_group(held)

-- A former holder that does not hear this finds out by its renewal.
local function tell_adopted(channel)
  this.publish(channel, 'adopted ' .. from)
end

if inside then
  -- The sizes of permits may differ.
  local is_alike = inside == mode or string.sub(inside, 1, 1) == 'p' and string.sub(mode, 1, 1) == 'p'
  local holder = is_alike and (this.read_inside(attempt) or this.read_inside(from))
  if not holder or holder.token ~= token then
    return { nonce, now, 'not held' }
  end
  local channel = holder.channel
  if holder.id == from then
    local ends = redis.call('ZSCORE', leases, from)
    holder.id, holder.channel, holder.text = attempt, wake, record
    local refused = this.write_holder(holder)
    if refused then
      return refused
    end
    redis.call('ZADD', leases, ends, attempt)
    redis.call('HDEL', holders, from)
    redis.call('ZREM', leases, from)
    tell_adopted(channel)
  end
  this.extend(attempt, lease_ms)
  return { nonce, now, 'adopted', holder.slot }
end
local id, its_token, channel = this.read_value(held or '')
if mode ~= 'x' or its_token ~= token or id ~= from and id ~= attempt then
  return { nonce, now, 'not held' }
end
local left = math.max(lease_ms, redis.call('PTTL', lock))
local set = this.set_lock(attempt, string.sub(held, 33, 33), token, wake, record, string.format('%.0f', left))
if set.err then
  return set
end
if id == from then
  if redis.call('EXISTS', queue) == 1 then
    this.note_holder(wake, left, record, 'g')
  end
  tell_adopted(channel)
end
return { nonce, now, 'adopted', '-' }
