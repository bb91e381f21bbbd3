-- KEYS: lock, queue, waiters, fence, holders, leases; ARGV: nonce, token; reply: nonce, 'broken' | 'not held' | 'foreign', type
local nonce = ARGV[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local now_digits = clock[1] .. string.rep('0', 6 - #clock[2]) .. clock[2]
local this = open_lock(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], now, now_digits)
local held, held_type = this.read_lock()
if not held then
  return { nonce, 'not held' }
end
local inside = this.read_group(held)
local attempt, token, wake = this.read_value(held)
if not attempt and not inside or inside and this.foreign_companion() then
  return { nonce, 'foreign', held_type }
end

-- Called after the lock has changed hands. A holder that does not hear this finds out by its renewal.
local function tell_lost(channel, id)
  this.publish(channel, 'lost ' .. id)
end

if inside then
  local broken = {}
  for _, id in ipairs(redis.call('ZRANGE', KEYS[6], 0, -1)) do
    local holder = this.read_inside(id)
    if holder and holder.token == ARGV[2] then
      broken[#broken + 1] = holder
      this.leave(id)
    end
  end
  if #broken == 0 then
    return { nonce, 'not held' }
  end
  this.follow(inside, '-')
  for _, holder in ipairs(broken) do
    tell_lost(holder.channel, holder.id)
  end
  return { nonce, 'broken' }
end
if token ~= ARGV[2] then
  return { nonce, 'not held' }
end
this.give_away()
tell_lost(wake, attempt)
return { nonce, 'broken' }
