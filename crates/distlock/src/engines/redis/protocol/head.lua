-- Begins break, amend and adopt. KEYS: lock, queue, waiters, fence, holders, leases; ARGV: nonce, and what each says; reply: none.
local lock, queue, waiters, fence, holders, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local nonce = ARGV[1]
