-- Claims locks that are free and have no waiters, all for one lease. KEYS: the locks, then their queues, then the fence; ARGV: nonce, not_after_us, lease_ms, then of each 'attempt ' and ' wake record'; reply: 'nonce now_us', '/token' unless that is now_us, then ' number' of each claim that claim.lua decides (' *': all); or 'nonce now_us late'
-- Everything else is claim.lua's: it is asked about the claims that this script leaves alone. No function, no table and one string as the
-- reply, because these are what a script costs most; `pcall`, so that a lock that cannot be claimed here fails no other.
local call, K, A = redis.pcall, KEYS, ARGV
local clock = call('TIME')
local us = clock[2]
if not us then
  return clock
end
-- As text: all times of the years 2001 to 2286 have 16 digits.
local now = clock[1] .. (#us == 6 and us or string.rep('0', 6 - #us) .. us)
if now > A[2] or #now ~= 16 then
  -- Its sender has given up on it, and perhaps released it already over another connection.
  return A[1] .. ' ' .. now .. ' late'
end
local token, fence, count = now, K[#K], (#K - 1) / 2
-- The fence before the locks: one that is not ours, or a server that must not write, shows before a lock is written. Its end stays, so
-- that it can be put back as it was.
local last = call('SET', fence, now, 'KEEPTTL', 'GET')
-- The fence of these thousand seconds has the first digits of the clock. The rules are those of `next_token` in shared.lua.
if not last or #last ~= 16 or last >= now or last < string.sub(now, 1, 7) then
  local number = last and tonumber(last)
  if last and not (number and number <= now + 86400000000) then
    if not last.err then
      call('SET', fence, last, 'KEEPTTL')
    end
    return A[1] .. ' ' .. now .. ' *'
  elseif number and number >= tonumber(now) then
    token = string.format('%.0f', number + 1)
    call('SET', fence, token, 'KEEPTTL')
  end
  call('PEXPIRE', fence, '608400000')
end
-- A lease that ran out leaves its waiters: none of them is passed over.
local is_queued = call('EXISTS', unpack(K, count + 1, 2 * count)) ~= 0
local lease_ms, odd = A[3], ''
for i = 1, count do
  local set = not (is_queued and call('EXISTS', K[count + i]) ~= 0)
    and call('SET', K[i], A[2 * i + 2] .. token .. A[2 * i + 3], 'NX', 'PX', lease_ms)
  if not set or set.err then
    odd = odd .. ' ' .. i
  end
end
return A[1] .. ' ' .. now .. (token == now and '' or '/' .. token) .. odd
