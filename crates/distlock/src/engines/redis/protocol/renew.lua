-- KEYS: locks; ARGV: nonce, lease_ms of all locks ('': they differ), attempt of each, lease_ms of each if they differ; reply: nonce, and one string with the number of each lock that is not ours any more, a space before each
if guard then
  guard().note_renewal()
end
-- As in the lean scripts: no number and no table for a lock that is held, and one string as the reply.
local call, count, common, gone, knows_gt = redis.pcall, #KEYS, ARGV[2] ~= '' and ARGV[2], '', true
for i = 1, count do
  local lock, attempt, lease_ms = KEYS[i], ARGV[i + 2], common or ARGV[count + i + 2]
  local held = call('GETRANGE', lock, '0', '31')
  if held ~= attempt and type(held) == 'table' and not string.find(held.err, 'WRONGTYPE', 1, true) then
    -- Raises the refusal as the server words it: a missing right says nothing about whose the lock is.
    held = redis.call('GETRANGE', lock, '0', '31')
  end
  if held ~= attempt then
    gone = gone .. ' ' .. i
  else
    -- A renewal that arrives late never makes a lease shorter. Servers before 7.0 do not know GT.
    local set = knows_gt and call('PEXPIRE', lock, lease_ms, 'GT')
    if set ~= 1 and set ~= 0 then
      knows_gt = false
      if redis.call('PTTL', lock) < tonumber(lease_ms) then
        redis.call('PEXPIRE', lock, lease_ms)
      end
    end
  end
end
return { ARGV[1], gone }
