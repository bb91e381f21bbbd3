-- KEYS: lock, queue, waiters, fence; ARGV: nonce, token; reply: nonce, 'broken' | 'not held' | 'foreign', type
local held, held_type = read_lock()
if not held then
  return { nonce, 'not held' }
end
local attempt, token, wake = read_value(held)
if not attempt then
  return { nonce, 'foreign', held_type }
end
if token ~= ARGV[2] then
  return { nonce, 'not held' }
end
give_away()
-- After the lock has changed hands, and without a care whether its old holder hears: it finds out by its renewal.
redis.pcall('PUBLISH', 'distlock:wake:' .. wake, 'lost ' .. attempt)
return { nonce, 'broken' }
