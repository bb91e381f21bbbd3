-- KEYS: lock, holders and leases of each lock; ARGV: nonce, then attempt and lease_ms of each; reply: nonce, then 1 (renewed) or 0 (not ours any more) of each
if guard then
  guard().note_renewal()
end
local clock = redis.call('TIME')
local now_ms = math.floor((clock[1] * 1000000 + clock[2]) / 1000)
local reply = { ARGV[1] }
for i = 1, #KEYS / 3 do
  local lock, leases = KEYS[3 * i - 2], KEYS[3 * i]
  local attempt, lease_ms = ARGV[2 * i], tonumber(ARGV[2 * i + 1])
  local is_group = read('GETRANGE', lock, 0, 14) == 'distlock group '
  local ends = is_group and read('ZSCORE', leases, attempt)
  if type(ends) ~= 'string' or tonumber(ends) < now_ms then
    reply[i + 1] = 0
  else
    -- Neither a lease nor the keys are ever made to last shorter. The keys first: without memory a server refuses to
    -- write a lease, but not after it has let a script write something.
    local left = math.max(lease_ms, redis.call('PTTL', lock))
    for key = 3 * i - 2, 3 * i do
      redis.call('PEXPIRE', KEYS[key], string.format('%.0f', left))
    end
    if tonumber(ends) < now_ms + lease_ms then
      redis.call('ZADD', leases, string.format('%.0f', now_ms + lease_ms), attempt)
    end
    reply[i + 1] = 1
  end
end
return reply
