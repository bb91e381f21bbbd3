-- KEYS: lock, holders and leases of each lock; ARGV: nonce, lease_ms of all locks ('': they differ), attempt of each, lease_ms of each if they differ; reply: nonce, and one string with the number of each lock that is not ours any more, a space before each
if guard then
  guard().note_renewal()
end
local clock = redis.call('TIME')
local now_ms = math.floor((clock[1] * 1000000 + clock[2]) / 1000)
local count, gone = #KEYS / 3, ''
for i = 1, count do
  local lock, leases = KEYS[3 * i - 2], KEYS[3 * i]
  local attempt, lease_ms = ARGV[i + 2], tonumber(ARGV[2] ~= '' and ARGV[2] or ARGV[count + i + 2])
  local is_group = read('GETRANGE', lock, 0, 14) == 'distlock group '
  local ends = is_group and read('ZSCORE', leases, attempt)
  if type(ends) ~= 'string' or tonumber(ends) < now_ms then
    gone = gone .. ' ' .. i
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
  end
end
return { ARGV[1], gone }
