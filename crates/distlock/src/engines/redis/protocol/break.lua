-- KEYS: lock, queue, waiters, fence, holders, leases; ARGV: nonce, token; reply: nonce, 'broken' | 'not held' | 'foreign', type
local held, held_type = read_lock()
if not held then
  return { nonce, 'not held' }
end
local inside = read_group(held)
local attempt, token, wake = read_value(held)
if not attempt and not inside or inside and foreign_companion() then
  return { nonce, 'foreign', held_type }
end

-- After the lock has changed hands, and without a care whether its old holder hears: it finds out by its renewal.
local function tell_lost(channel, id)
  redis.pcall('PUBLISH', 'distlock:wake:' .. channel, 'lost ' .. id)
end

if inside then
  local broken = {}
  for _, id in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
    local holder = read_inside(id)
    if holder and holder.token == ARGV[2] then
      broken[#broken + 1] = holder
      leave(id)
    end
  end
  if #broken == 0 then
    return { nonce, 'not held' }
  end
  follow(inside, '-')
  for _, holder in ipairs(broken) do
    tell_lost(holder.channel, holder.id)
  end
  return { nonce, 'broken' }
end
if token ~= ARGV[2] then
  return { nonce, 'not held' }
end
give_away()
tell_lost(wake, attempt)
return { nonce, 'broken' }
