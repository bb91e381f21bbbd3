-- Releases locks that one attempt holds and that have no waiters. KEYS: the locks; ARGV: nonce, then of each 'attempt '; reply: 'nonce', then ' number' of each release that release.lua decides
local call, K, A = redis.pcall, KEYS, ARGV
for i = 1, #K do
  -- The byte behind the attempt is '+' when the lock has waiters.
  if call('GETRANGE', K[i], '0', '32') ~= A[i + 1] then
    local odd = ''
    for j = 1, #K do
      if call('GETRANGE', K[j], '0', '32') ~= A[j + 1] or call('DEL', K[j]) ~= 1 then
        odd = odd .. ' ' .. j
      end
    end
    return A[1] .. odd
  end
end
local deleted = call('DEL', unpack(K))
return type(deleted) == 'number' and A[1] or deleted
