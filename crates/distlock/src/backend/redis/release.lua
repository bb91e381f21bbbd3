-- KEYS: lock, queue, waiters, fence; ARGV: nonce, attempt; reply: nonce, 'released' | 'not ours', attempt to wake or ''
if held == attempt .. '+' then
  return { nonce, 'released', give_away() }
end

-- Not ours: the attempt's own place is all that is given up. What is of another type is nobody's place.
local next_up = ''
local place = redis.pcall('ZRANK', queue, attempt)
if type(place) == 'number' and type(redis.pcall('HDEL', waiters, attempt)) == 'number' then
  redis.call('ZREM', queue, attempt)
  if redis.call('EXISTS', queue) == 0 then
    redis.call('DEL', waiters)
  elseif place == 0 and redis.call('EXISTS', lock) == 0 then
    -- It was its turn, so it is the next one's now.
    next_up = give_away()
  end
end
return { nonce, 'not ours', next_up }
