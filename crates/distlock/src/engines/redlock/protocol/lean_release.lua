-- KEYS: the locks, then the queue of each; ARGV: 'attempt ballot ' of each; reply: the first of these, then ' n' for each release to ask batch.lua for
-- The common case of batch.lua: this node has voted for the hold, which was never renewed, and has no waiters. The fence
-- keeps its ballot, which refuses every claim of the attempt that comes late.
local call, K, A = redis.pcall, KEYS, ARGV
local count, odd = #A, ''
local waits = call('EXISTS', unpack(K, count + 1)) ~= 0
for i = 1, count do
  if call('GETRANGE', K[i], '0', '49') ~= A[i] or waits and call('EXISTS', K[count + i]) ~= 0 then
    odd = odd .. ' ' .. i
    K[i] = false
  end
end
if odd == '' and type(call('DEL', unpack(K, 1, count))) ~= 'number' then
  -- The node refuses writes: batch.lua says why.
  for i = 1, count do
    odd = odd .. ' ' .. i
  end
elseif odd ~= '' then
  for i = 1, count do
    if K[i] and type(call('DEL', K[i])) ~= 'number' then
      odd = odd .. ' ' .. i
    end
  end
end
return A[1] .. odd
