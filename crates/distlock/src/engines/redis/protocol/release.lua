-- One release. KEYS: lock, queue, waiters, fence, holders, leases; ARGV: attempt, held (what is read of the lock); both as locals; reply: 'released' | 'not ours', attempt to wake, '' or 'more' (dead waiters: release again)
if held == attempt .. '+' then
  return { 'released', give_away() }
end
local value = read_lock()
local inside = value and read_group(value)
if inside and foreign_companion() then
  inside = nil
end
local mine = inside and read_inside(attempt)
if mine then
  leave(attempt)
  return { 'released', follow(inside, mine.channel) }
end

-- Not ours: the attempt's own place is all that is given up. What is of another type is nobody's place.
local next_up = ''
local place = read('ZRANK', queue, attempt)
if type(place) == 'number' and type(redis.pcall('HDEL', waiters, attempt)) == 'number' then
  redis.call('ZREM', queue, attempt)
  if redis.call('EXISTS', queue) == 0 then
    redis.call('DEL', waiters)
  elseif place == 0 and not value then
    -- It was its turn, so it is the next one's now.
    next_up = give_away()
  elseif place == 0 and inside then
    -- Those behind it may join those who are inside.
    next_up = follow(inside, '-')
  end
elseif not place and (inside or not value) and redis.call('EXISTS', queue) == 1 then
  -- The release before this one found so many dead waiters that it stopped there.
  next_up = inside and follow(inside, '-') or give_away()
end
return { 'not ours', next_up }
