-- KEYS: locks; ARGV: nonce, then attempt and ttl_ms of each lock; reply: nonce, then 1 (renewed) or 0 (not ours any more) of each
local reply = { ARGV[1] }
for i, lock in ipairs(KEYS) do
  local attempt, ttl_ms = ARGV[2 * i], ARGV[2 * i + 1]
  if redis.pcall('GETRANGE', lock, 0, 32) ~= attempt .. ' ' then
    reply[i + 1] = 0
  else
    -- A renewal that arrives late never makes a lease shorter.
    if redis.call('PTTL', lock) < tonumber(ttl_ms) then
      redis.call('PEXPIRE', lock, ttl_ms)
    end
    reply[i + 1] = 1
  end
end
return reply
