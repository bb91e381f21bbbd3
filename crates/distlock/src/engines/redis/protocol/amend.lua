-- KEYS: lock, queue, waiters, fence, holders, leases; ARGV: nonce, attempt, record; reply: nonce, 1 (written) or 0 (not ours)
local attempt, record = ARGV[2], ARGV[3]
local held = read_lock()
local inside = held and read_group(held)
if inside then
  local holder = read_inside(attempt)
  if not holder then
    return { nonce, 0 }
  end
  holder.text = record
  return write_holder(holder) or { nonce, 1 }
end
local id, token, channel = read_value(held or '')
if id ~= attempt then
  return { nonce, 0 }
end
local set = set_lock(id, string.sub(held, 33, 33), token, channel, record, math.max(1, redis.call('PTTL', lock)))
return set.err and set or { nonce, 1 }
