-- KEYS: locks; ARGV: nonce, then attempt and ttl_ms of each lock; reply: nonce, then 1 (renewed) or 0 (not ours any more) of each
if guard then
  guard().note_renewal()
end
-- Servers before 7.0 do not know GT.
local reply, knows_gt = { ARGV[1] }, true
for i, lock in ipairs(KEYS) do
  local attempt, ttl_ms = ARGV[2 * i], ARGV[2 * i + 1]
  local held = redis.pcall('GETRANGE', lock, '0', '31')
  if type(held) == 'table' and not string.find(held.err, 'WRONGTYPE', 1, true) then
    -- Raises the refusal as the server words it: a missing right says nothing about whose the lock is.
    held = redis.call('GETRANGE', lock, '0', '31')
  end
  if held ~= attempt then
    reply[i + 1] = 0
  else
    -- A renewal that arrives late never makes a lease shorter.
    if knows_gt and type(redis.pcall('PEXPIRE', lock, ttl_ms, 'GT')) == 'table' then
      knows_gt = false
    end
    if not knows_gt and redis.call('PTTL', lock) < tonumber(ttl_ms) then
      redis.call('PEXPIRE', lock, ttl_ms)
    end
    reply[i + 1] = 1
  end
end
return reply
