-- KEYS: lock and fence of each claim, then the node's note; ARGV: note ('': no restart guard), latest_us, ttl_ms, then value and ballot of each claim; reply: 'ballot now_us', with the first claim's ballot, then ' n' for each claim to ask batch.lua for, ' all' for all of them
-- The common case of batch.lua: the lock is free, nothing of this attempt is queued, and the note is the one that the
-- sender knows. The sender has checked what follows from that note. Any other claim leaves nothing behind.
local call, K, A = redis.pcall, KEYS, ARGV
local clock = call('TIME')
local micros = clock[2]
local now = clock[1] .. (#micros == 6 and micros or string.rep('0', 6 - #micros) .. micros)
local count = #K - 1
if now > A[2] or A[1] ~= '' and call('GET', K[count + 1]) ~= A[1] then
  return A[5] .. ' ' .. now .. ' all'
end
-- The first ballot without its last 1000 seconds. Ballots are as long as `now`, so they are compared as text.
local recent, odd = string.sub(A[5], 1, 7), ''
for i = 1, count, 2 do
  local lock, fence, ballot = K[i], K[i + 1], A[i + 4]
  local set = call('SET', lock, A[i + 3], 'NX', 'PX', A[3])
  if not set or set.err then
    odd = odd .. ' ' .. (i + 1) / 2
  else
    local last = call('SET', fence, ballot, 'KEEPTTL', 'GET')
    if not last or #last == 16 and last < recent and tonumber(last) then
      call('PEXPIRE', fence, '604800000')
    elseif #last ~= 16 or last >= ballot then
      -- The ballot is too low, or the fence is not ours: both keys as they were.
      if type(last) == 'string' then
        call('SET', fence, last, 'KEEPTTL')
      end
      call('DEL', lock)
      odd = odd .. ' ' .. (i + 1) / 2
    end
  end
end
return A[5] .. ' ' .. now .. odd
