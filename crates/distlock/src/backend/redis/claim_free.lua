-- Takes a lock that is free and for which nobody waits. KEYS, ARGV, reply: as in claim.lua.
local attempt, lease_ms, record, wake = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local heartbeat_ms = tonumber(ARGV[6])
local word = ARGV[8]

-- Its sender has given up on it, and perhaps released it already by another way.
if now > tonumber(ARGV[7]) then
  return { nonce, now, 'late' }
end

local function grant(mark)
  local token, refusal = next_token()
  if not token then
    return refusal or { nonce, now, 'fence' }
  end
  local set = set_lock(attempt, mark, string.format('%.0f', token), wake, record, lease_ms)
  if set.err then
    return set
  end
  return { nonce, now, 'granted', token }
end

if word == 'x' and redis.call('EXISTS', lock, queue) == 0 then
  return grant(' ')
end
