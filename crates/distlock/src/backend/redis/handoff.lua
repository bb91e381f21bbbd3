-- From one holder to the next. KEYS, ARGV: as in head.lua; reply: none.

-- Gives a waiter the lock for itself and tells it. Answers as `tell`; the lock stays set when nobody heard.
local function hand_lock(waiter, mark)
  local token = token_for(waiter.word)
  local lease_ms = waiter.first_ms + waiter.delay_ms
  if not token or set_lock(waiter.id, mark, token, waiter.channel, waiter.text, lease_ms).err then
    return nil
  end
  return tell(waiter, token, '-')
end

-- Looks for the next waiter that lives and gives it the lock, which must be free or the caller's own. Reads before it
-- writes: what it finds of another type ends it. Answers:
--   'handed'  a waiter has the lock and was told; by itself, or as the first of a group
--   'mine'    the next is `me`; nothing is set for it yet
--   'left'    the next one only polls, or cannot be given the lock now; the lock is free for it
--   'nobody'  nobody waits
-- and the waiters that are gone, which the caller drops; and the waiter that got it.
local function pass_on(me)
  local gone, set = {}, false
  local outcome, taker = 'nobody', nil
  for place = 0, MOST_GONE - 1 do
    -- Two, to see whether somebody is behind the one.
    local found = redis.pcall('ZRANGE', queue, place, place + 1)
    local id = found[1]
    if found.err or not id then
      break
    end
    if id == me then
      outcome = 'mine'
      break
    end
    local waiter, is_foreign = read_waiter(id)
    local heard = false
    if is_foreign or waiter and waiter.channel == '-' then
      heard = nil
    elseif waiter and waiter.word == 'x' then
      heard, set = hand_lock(waiter, found[2] and '+' or ' '), true
    elseif waiter then
      if foreign_companion() then
        heard = nil
      else
        forget_group()
        heard = hand_place(waiter)
      end
    end
    if heard == nil then
      outcome = 'left'
      break
    end
    gone[#gone + 1] = id
    if heard then
      outcome, taker = 'handed', waiter
      break
    end
  end
  if set and outcome ~= 'handed' then
    redis.call('DEL', lock)
  end
  return outcome, gone, taker
end

-- Tells the first waiter that the lock is free for it, when it could not be handed over. Answers who that is.
local function poke()
  local first = redis.pcall('ZRANGE', queue, 0, 0)[1]
  local entry = first and redis.pcall('HGET', waiters, first)
  local channel = type(entry) == 'string' and string.match(entry, '^%d+ %d+ (%x+) ')
  if channel then
    redis.pcall('PUBLISH', 'distlock:wake:' .. channel, 'retry ' .. first)
  end
  return first or ''
end

-- Lets others in beside those who are inside. Answers as `give_away`.
local function make_room(word)
  local _, is_more = let_in(word, nil)
  return is_more and poke() or ''
end

-- Ends the hold that the caller has checked: the next waiter gets the lock, or it is free. Answers who must claim it
-- then without having been told.
local function give_away()
  local outcome, gone, taker = pass_on(nil)
  if outcome ~= 'handed' then
    redis.call('DEL', lock)
  end
  if #gone > 0 or outcome == 'left' then
    drop(gone)
    note_holder(taker and taker.channel)
  end
  if taker and taker.word ~= 'x' then
    return make_room(taker.word)
  elseif outcome == 'left' or outcome == 'nobody' and #gone > 0 then
    return poke()
  end
  return ''
end

-- After some have left a group: whoever may enter does. Answers as `give_away`. The process behind the channel `me` lives.
local function follow(word, me)
  local silent = drop_expired()
  purge(silent, me)
  if not settle_group() then
    return give_away()
  elseif redis.call('EXISTS', queue) == 1 then
    note_longest()
    return make_room(word)
  end
  return ''
end
