-- Grants. KEYS, ARGV, reply: as in claim.lua.
local function grant(mark)
  local token, digits = next_token(fence)
  if not token then
    return digits or { 'fence' }
  end
  local set = set_lock(attempt, mark, digits, wake, record, lease_ms)
  return set.err and set or { 'granted', token }
end

-- Enters; the caller has seen that it may. Nil when there is no slot.
local function join()
  local token, refusal = token_for(word)
  if not token then
    return refusal or { 'fence' }
  end
  local slot, refused = enter(word, attempt, token, tonumber(lease_ms), wake, record)
  spare_token = nil
  return slot and { 'granted', tonumber(token), slot } or refused
end

-- Claims a place among those who are inside. Nil when that must wait.
local function join_others()
  local mine = read_inside(attempt)
  if mine then
    -- A repeat, or the first the waiter hears of a handoff.
    note_leases(now / 1000)
    extend(attempt, tonumber(lease_ms))
    return { 'granted', tonumber(mine.token), mine.slot }
  end
  local has_queue = redis.call('EXISTS', queue) == 1
  if has_queue and type(read('ZCARD', queue)) == 'table' then
    return { 'foreign', queue }
  elseif has_queue and type(read('HGET', waiters, attempt)) == 'table' then
    return { 'foreign', waiters }
  end
  -- Its entries pass by the queue, whose head waits for them.
  local may_enter = string.sub(word, 1, 1) == 'r'
  local is_more, is_cut = false, false
  if not may_enter and has_queue then
    may_enter, is_more, is_cut = let_in(word, attempt)
    has_queue = redis.call('EXISTS', queue) == 1
  end
  may_enter = may_enter or not has_queue and redis.call('ZCARD', leases) < size_of(word)
  if is_more and poke() == '' and is_cut and not may_enter then
    return { 'more' }
  end
  local granted = may_enter and join()
  if has_queue and granted and granted[1] == 'granted' then
    drop({ attempt })
    note_longest()
    make_room(word)
  end
  return granted or nil
end
