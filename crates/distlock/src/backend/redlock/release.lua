-- KEYS: lock, queue, waiters, fence; ARGV: nonce, attempt, ballot (0: not known), waits (1: may have a place), wake (1: tell the next); reply: nonce, 'released' | 'not ours'
local attempt, ballot = ARGV[2], tonumber(ARGV[3])
-- Enough to see whose it is, and the ballot.
local held = redis.pcall('GETRANGE', lock, 0, 63)
local is_mine = type(held) == 'string' and string.sub(held, 1, 33) == attempt .. ' '
if is_mine then
  local stored = tonumber(string.match(held, '^%x+ (%d+) ') or 0)
  -- What is taken back is a ballot. The attempt may have been granted with a higher one since.
  is_mine = ballot == 0 or stored <= ballot
  ballot = ballot == 0 and stored or ballot
end
if ballot > 0 then
  bury(ballot)
end
local was_first = ARGV[4] == '1' and leave(attempt)
if not is_mine then
  -- Perhaps it was told that the lock is free, and nobody else was.
  if was_first and held == '' then
    wake_next()
  end
  return { nonce, 'not ours' }
end
redis.call('DEL', lock)
if ARGV[5] == '1' then
  wake_next()
end
return { nonce, 'released' }
