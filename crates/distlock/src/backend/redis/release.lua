-- KEYS: lock, queue, waiters, fence; ARGV: nonce, attempt; reply: nonce, now_us, 'released' | 'not ours', attempt to wake or ''
local attempt = ARGV[2]

local held = read_lock(32)
if held == attempt .. ' ' then
  return { nonce, now, 'released', give_away() }
end

-- Not ours: the attempt's own place is all that is given up. What is of another type is nobody's place.
local next_up = ''
local place = redis.pcall('ZRANK', queue, attempt)
if type(place) == 'number' and redis.call('TYPE', waiters).ok ~= 'hash' then
  place = nil
end
if type(place) == 'number' then
  redis.call('ZREM', queue, attempt)
  redis.call('HDEL', waiters, attempt)
  if redis.call('ZCARD', queue) == 0 then
    redis.call('DEL', queue, waiters)
  elseif not held and place == 0 then
    -- It was its turn, so it is the next one's now.
    next_up = give_away()
  end
end
return { nonce, now, 'not ours', next_up }
