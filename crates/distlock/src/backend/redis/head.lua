-- Begins claim and break. KEYS: lock, queue, waiters, fence; ARGV: nonce, and what each says; reply: none.
-- A call of a command from a script costs more than most commands, so the common paths make as few as they can.
local lock, queue, waiters, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local nonce = ARGV[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
