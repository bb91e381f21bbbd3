-- KEYS: lock, leases; ARGV: nonce, attempt; reply: nonce, 1 (written) or 0 (not ours)
-- Writes to a hold without changing it, so that replicas that acknowledge this write have the hold as well.
local key
if read('GETRANGE', KEYS[1], '0', '31') == ARGV[2] then
  key = KEYS[1]
elseif type(read('ZSCORE', KEYS[2], ARGV[2])) == 'string' then
  key = KEYS[2]
end
local left = key and redis.call('PTTL', key) or 0
if left <= 0 then
  return { ARGV[1], 0 }
end
-- A lease is never made shorter.
redis.call('PEXPIRE', key, left + 1)
return { ARGV[1], 1 }
