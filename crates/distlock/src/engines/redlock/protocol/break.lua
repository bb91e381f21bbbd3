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
-- In case its sender does not come to the round behind it.
mark_forced(fence, ballot)
redis.call('DEL', lock)
wake_next(queue, waiters)
-- Without a care whether its old holder hears: it finds out by its renewal.
local wake = string.match(held, '^%x+ %d+ (%x+) ')
if wake then
  redis.pcall('PUBLISH', 'distlock:wake:' .. wake, 'lost ' .. attempt)
end
return { nonce, 'broken', attempt }
