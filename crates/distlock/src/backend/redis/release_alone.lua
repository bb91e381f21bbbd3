-- Releases a lock for which nobody waits. KEYS, ARGV, reply: as in release.lua.
local lock, queue, waiters, fence, holders, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local nonce, attempt = ARGV[1], ARGV[2]

local held = redis.pcall('GETRANGE', lock, 0, 32)
if held == attempt .. ' ' then
  redis.call('DEL', lock)
  return { nonce, 'released', '' }
end

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
