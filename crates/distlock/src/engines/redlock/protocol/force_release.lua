-- KEYS: lock, queue, waiters, fence; ARGV: nonce, token; reply: nonce, 'broken', attempt | 'not held' | 'foreign', type
local lock, queue, waiters, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local nonce = ARGV[1]
local held = redis.pcall('GETRANGE', lock, 0, 4095)
if type(held) == 'table' then
  return { nonce, 'foreign', redis.call('TYPE', lock).ok }
end
if held == '' and redis.call('EXISTS', lock) == 0 then
  return { nonce, 'not held' }
end
local attempt, ballot = read_value(held)
if not attempt or not string.find(held, '^%x+ %d+ %S+ {') then
  return { nonce, 'foreign', 'string' }
end
if ballot ~= tonumber(ARGV[2]) then
  return { nonce, 'not held' }
end
local last = redis.pcall('GET', fence)
bury(fence, type(last) ~= 'table' and tonumber(last or 0), ballot)
-- In case the sender does not get to the releases that follow.
mark_forced(fence, ballot)
redis.call('DEL', lock)
wake_next(queue, waiters)
-- A holder that does not receive this finds out by its renewal.
local channel = string.match(held, '^%x+ %d+ (%x+) ')
if channel then
  redis.pcall('PUBLISH', 'distlock:wake:' .. channel, 'lost ' .. attempt)
end
return { nonce, 'broken', attempt }
