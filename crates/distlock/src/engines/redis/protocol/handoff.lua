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
--   'more'    all that one call looks at are gone, and there are more: the lock is free, and no newcomer's
--   'nobody'  nobody waits
-- and the waiters that are gone, which the caller drops; and the waiter that got it.
local function pass_on(me)
  local gone, set = {}, false
  local outcome, taker = 'nobody', nil
  local is_cut = walk(function(id, waiter, is_foreign, behind)
    if id == me then
      outcome = outcome == 'more' and 'more' or 'mine'
      return true
    elseif is_dead(waiter, is_foreign) then
      gone[#gone + 1] = id
      return false
    elseif outcome == 'more' or unheard >= most_unheard then
      -- No other channel is tried. The dead behind it are dropped all the same, or there would be too many of them.
      outcome = 'more'
      return false
    end
    local heard = nil
    if is_foreign or waiter.channel == '-' or waiter.word ~= 'x' and foreign_companion() then
      heard = nil
    elseif waiter.word == 'x' then
      heard, set = hand_lock(waiter, behind and '+' or ' '), true
    else
      forget_group()
      heard = hand_place(waiter)
    end
    if heard == nil then
      outcome = 'left'
      return true
    end
    gone[#gone + 1] = id
    if heard then
      outcome, taker = 'handed', waiter
    end
    return heard
  end)
  if is_cut then
    outcome = 'more'
  end
  if set and outcome ~= 'handed' then
    redis.call('DEL', lock)
  end
  return outcome, gone, taker
end

-- Tells the first waiter that hears it to claim, when the lock could not be handed over. Returns which waiter that is, or
-- the one that only polls; '' when there is none among those that one call looks at.
local function poke()
  local told, most = '', math.max(most_unheard, unheard + LEAST_UNHEARD)
  walk(function(id, waiter)
    if waiter and (waiter.channel == '-' or send(waiter.channel, 'retry ' .. id) ~= false) then
      told = id
    end
    return told ~= '' or unheard >= most
  end)
  return told
end

-- Notes who has the lock now: `taker`, to whom it was handed over.
local function note_taker(taker)
  if taker then
    note_holder(taker.channel, taker.lease_ms, taker.text, 'h')
  else
    note_holder(nil)
  end
end

-- Lets others in beside those who are inside. Answers as `give_away`.
local function make_room(word)
  local _, is_more, is_cut = let_in(word, nil)
  if not is_more then
    return ''
  end
  local told = poke()
  return told == '' and is_cut and redis.call('EXISTS', queue) == 1 and 'more' or told
end

-- Ends the hold that the caller has checked: the next waiter gets the lock, or it is free. Answers who must claim it
-- then without having been told; 'more' when only dead waiters were found, and the caller must call again.
local function give_away()
  local outcome, gone, taker = pass_on(nil)
  if outcome ~= 'handed' then
    redis.call('DEL', lock)
  end
  if #gone > 0 or outcome == 'left' then
    drop(gone)
    note_taker(taker)
  end
  if taker and taker.word ~= 'x' then
    return make_room(taker.word)
  elseif outcome == 'left' then
    return poke()
  elseif outcome == 'more' then
    -- In case the caller does not come back.
    poke()
    return 'more'
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
