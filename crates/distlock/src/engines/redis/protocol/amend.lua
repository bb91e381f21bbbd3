-- KEYS: lock, queue, waiters, fence, holders, leases; ARGV: nonce, attempt, record; reply: nonce, 1 (written) or 0 (not ours)
local nonce, attempt, record = ARGV[1], ARGV[2], ARGV[3]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local now_digits = clock[1] .. string.rep('0', 6 - #clock[2]) .. clock[2]
local this = open_lock(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], now, now_digits)
local held = this.read_lock()
local inside = held and this.read_group(held)
if inside then
  local holder = this.read_inside(attempt)
  if not holder then
    return { nonce, 0 }
  end
  holder.text = record
  return this.write_holder(holder) or { nonce, 1 }
end
local id, token, channel = this.read_value(held or '')
if id ~= attempt then
  return { nonce, 0 }
end
local set = this.set_lock(id, string.sub(held, 33, 33), token, channel, record, math.max(1, redis.call('PTTL', KEYS[1])))
return set.err and set or { nonce, 1 }
