-- One claim. KEYS: lock, queue, waiters, fence, holders, leases; ARGV: attempt, lease_ms, how, record; both as locals; reply: outcome, ...
-- Outcomes: 'granted', token, slot (of a group, '-': none) | 'busy', pttl_ms, place (-1: none), value, type | 'more' (dead waiters: claim again) | 'late' | 'fence' | 'foreign', key | 'disagrees', word.

-- The lock is free: takes it, or gives it to whoever came before. Nil when somebody else has it then.
local function claim_unheld()
  local waiting = read('ZCARD', queue)
  if type(waiting) == 'table' then
    return { 'foreign', queue }
  end
  local silent = read('HGET', waiters, 'handed')
  if type(silent) == 'table' then
    return { 'foreign', waiters }
  end
  if word ~= 'x' then
    forget_group()
  end
  local take = word == 'x' and grant or join
  if waiting == 0 then
    return take(' ')
  end
  if silent then
    -- The last one that got the lock let its lease run out, and this is the first claim since.
    purge(read_note(silent), wake)
    redis.call('HDEL', waiters, 'handed')
  end
  -- Somebody waits: nobody is passed over.
  local outcome, gone, taker = pass_on(attempt)
  if outcome == 'mine' then
    gone[#gone + 1] = attempt
  end
  local granted
  if outcome == 'nobody' or outcome == 'mine' then
    granted = take(redis.call('ZCARD', queue) > #gone and '+' or ' ')
    if granted[1] ~= 'granted' then
      return granted
    end
  end
  drop(gone)
  if outcome == 'more' then
    -- In case the sender does not claim again.
    poke()
    return { 'more' }
  elseif granted then
    note_holder(wake, tonumber(lease_ms), record, 'g')
  else
    note_taker(taker)
  end
  local entered = granted and word or taker and taker.word
  if entered and entered ~= 'x' then
    make_room(entered)
  end
  return granted
end

-- The word that this claim does not agree with, if there is one: a semaphore is one for everybody who holds or waits.
local function disagreement(held, inside)
  local other = inside or held and read_value(held) and 'x'
  if not other then
    local first = read('ZRANGE', queue, 0, 0)[1]
    local waiter = first and first ~= attempt and read_waiter(first)
    other = waiter and waiter.word or word
  end
  local has_slots = string.sub(other, 1, 1) == 'p' or string.sub(word, 1, 1) == 'p'
  return has_slots and other ~= word and other
end

local inside = held and read_group(held)
local other_type = word ~= 'x' and foreign_companion()
if other_type then
  return { 'foreign', other_type }
end
if inside and inside == word then
  -- Nothing is written unless somebody is out: a server without memory refuses a new token only to who has not.
  local silent, is_less = drop_expired()
  purge(silent, wake)
  if (is_less or redis.call('ZCARD', leases) == 0) and not settle_group() then
    held, inside = nil, nil
  end
elseif held and not inside then
  local holder, token = read_value(held)
  if holder == attempt then
    -- A repeat, or the first the waiter hears of a handoff. A lease is never made shorter.
    note_leases(now / 1000)
    if redis.call('PTTL', lock) < tonumber(lease_ms) then
      redis.call('PEXPIRE', lock, lease_ms)
    end
    return { 'granted', tonumber(token) }
  end
end
if not held then
  local answer = claim_unheld()
  if answer then
    return answer
  end
  held, held_type = read_lock()
  inside = held and read_group(held)
end
if inside and inside == word then
  local answer = join_others()
  if answer then
    return answer
  end
end
local other_word = disagreement(held, inside)
if other_word then
  return { 'disagrees', other_word }
end

local place, refused = enqueue(held, held_type)
if refused then
  return refused
end
local left = redis.call('PTTL', lock)
if inside then
  -- Room comes with the first lease that ends; to those who need the lock for themselves, with the last.
  local shown, ends = show_one(inside == word and 0 or -1)
  held, left = shown or held, ends or left
end
return { 'busy', left, place, held or '', held_type }
