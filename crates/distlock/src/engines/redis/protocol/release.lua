-- Releases locks, each by itself. KEYS: lock, queue, waiters, fence, holders, leases of each release; ARGV: nonce, then the attempt of each; reply: nonce, then of each a number (released; 2: and handed over, else it had no waiters) or an outcome
-- Outcomes: 'released' | 'not ours', each with the attempt to wake, '' or 'more' (dead waiters: release again).
-- release_short.lua has carried out the first `done` of them, and defines `reply`, and `known` for the next one.

-- Releases a lock that has waiters or several holders, or that the attempt does not hold. `held` is the start of its value. Returns
-- the outcome.
local function release(lock, queue, waiters, fence, holders, leases, attempt, held)
  local clock = redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]
  local now_digits = clock[1] .. string.rep('0', 6 - #clock[2]) .. clock[2]
  local this = open_lock(lock, queue, waiters, fence, holders, leases, now, now_digits)
  if held == attempt .. '+' then
    return { 'released', this.give_away() }
  end
  local value = this.read_lock()
  local inside = value and this.read_group(value)
  if inside and this.foreign_companion() then
    inside = nil
  end
  local mine = inside and this.read_inside(attempt)
  if mine then
    this.leave(attempt)
    return { 'released', this.follow(inside, mine.channel) }
  end

  -- Not ours: only the attempt's own place is given up. A key of another type has no place of ours.
  local next_up = ''
  local place = read('ZRANK', queue, attempt)
  if type(place) == 'number' and type(redis.pcall('HDEL', waiters, attempt)) == 'number' then
    redis.call('ZREM', queue, attempt)
    if redis.call('EXISTS', queue) == 0 then
      redis.call('DEL', waiters)
    elseif place == 0 and not value then
      -- It was its turn, so it is the next one's now.
      next_up = this.give_away()
    elseif place == 0 and inside then
      -- The waiters behind it may join the group.
      next_up = this.follow(inside, '-')
    end
  elseif not place and (inside or not value) and redis.call('EXISTS', queue) == 1 then
    -- The release before this one found so many dead waiters that it stopped there.
    next_up = inside and this.follow(inside, '-') or this.give_away()
  end
  return { 'not ours', next_up }
end

for i = done + 1, #KEYS / 6 do
  local k, attempt = 6 * i - 6, ARGV[i + 1]
  local lock = KEYS[k + 1]
  local held = known or redis.pcall('GETRANGE', lock, '0', '32')
  known = nil
  if held == attempt .. ' ' then
    reply[i + 1] = redis.pcall('DEL', lock)
  else
    local is_done, outcome =
      pcall(release, lock, KEYS[k + 2], KEYS[k + 3], KEYS[k + 4], KEYS[k + 5], KEYS[k + 6], attempt, held)
    if not is_done then
      -- The error is the outcome of this release alone. One of the script itself has no code.
      local text = type(outcome) == 'table' and outcome.err or outcome
      outcome = { err = string.match(text, '^%u+ ') and text or 'ERR ' .. text }
    end
    reply[i + 1] = outcome
  end
end
return reply
