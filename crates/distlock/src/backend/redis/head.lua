-- Begins claim, break and adopt. KEYS: lock, queue, waiters, fence, holders, leases; ARGV: nonce, and what each says; reply: none.
-- A call of a command from a script costs more than most commands, so the common paths make as few as they can.
local lock, queue, waiters, fence, holders, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local nonce = ARGV[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
