-- Claims locks, each by itself. KEYS: lock, queue, waiters, fence, holders, leases of each claim; ARGV: nonce, wake, then attempt, lease_ms, not_after_us, flags, record of each; reply: nonce, now_us, then of each its token or an outcome
-- Flags: the mode (shared.lua), heartbeat_ms (0: no queue), and delay_ms (a part of lease_ms), with spaces between.
-- Outcomes: 'granted', token, slot (of a group, '-': none) | 'busy', pttl_ms, place (-1: none), value, type | 'more' (dead waiters: claim again) | 'late' | 'fence', key | 'quarantined', left_ms | 'foreign', key | 'disagrees', mode.
-- claim_short.lua has carried out the first `done` of them, and defines `now`, `now_digits`, `wake` and `reply`.

-- Claims a lock that is held, or has a queue, or that several may hold. Returns the outcome.
local function claim(lock, queue, waiters, fence, holders, leases, attempt, lease_ms, flags, record)
  local mode, heartbeat_ms, delay_ms = string.match(flags, '^(%S+) (%d+) (%d+)$')
  local has_slots = string.sub(mode, 1, 1) == 'p'

  -- Makes a key of the queue last for this heartbeat. Never shorter than it does: a waiter with a longer one may stand in it.
  -- Never longer than the longest either, which happens where the clock was set back: every key of the queue expires.
  local function keep_key(key)
    local left, heartbeat = redis.call('PTTL', key), tonumber(heartbeat_ms)
    local longest = math.max(heartbeat, LONGEST_HEARTBEAT_MS)
    if left < heartbeat then
      redis.call('PEXPIRE', key, heartbeat_ms)
    elseif left > longest then
      redis.call('PEXPIRE', key, string.format('%.0f', longest))
    end
  end

  -- Takes a place, or keeps the one it has, behind a lock as it was read. Returns the place, -1 for a claim that does not queue;
  -- nil and the outcome when there is no place to take.
  local function enqueue(held, held_type)
    if heartbeat_ms == '0' then
      return -1
    end
    local last = redis.pcall('ZRANGE', queue, '-1', '-1', 'WITHSCORES')
    if last.err then
      return nil, { 'foreign', queue }
    end
    local ticket = now_digits
    if (tonumber(last[2]) or 0) >= now then
      ticket = string.format('%.0f', last[2] + 1)
    end
    local ttl_ms, alive_until = tonumber(lease_ms) - tonumber(delay_ms), now / 1000 + tonumber(heartbeat_ms)
    local entry = string.format('%d %.0f %s %s %s ', ttl_ms, alive_until, wake, delay_ms, mode) .. record
    -- A repeat keeps its place.
    redis.call('ZADD', queue, 'NX', ticket, attempt)
    if type(redis.pcall('HSET', waiters, attempt, entry)) == 'table' then
      redis.call('ZREM', queue, attempt)
      return nil, { 'foreign', waiters }
    end
    local place = redis.call('ZRANK', queue, attempt)
    keep_key(queue)
    keep_key(waiters)
    if held_type == 'string' and string.sub(held, 33, 33) == ' ' and #(string.match(held, OURS) or '') == 32 then
      redis.call('SETRANGE', lock, '32', '+')
    end
    return place
  end

  local value = read('GETRANGE', lock, '0', '4095')
  local id = mode == 'x' and type(value) == 'string' and string.match(value, OURS)
  if id and #id == 32 and id ~= attempt then
    -- Another attempt holds it alone: nothing else is to be looked at.
    local place, refused = enqueue(value, 'string')
    return refused or { 'busy', redis.call('PTTL', lock), place, value, 'string' }
  end
  local this = open_lock(lock, queue, waiters, fence, holders, leases, now, now_digits)

  -- Takes the lock. Returns the outcome.
  local function take(mark)
    if mode ~= 'x' then
      return this.join(mode, attempt, tonumber(lease_ms), wake, record)
    end
    local token, digits = next_token(lock, fence, now, now_digits)
    if not token then
      return digits
    end
    local set = this.set_lock(attempt, mark, digits, wake, record, lease_ms)
    return set.err and set or { 'granted', token }
  end

  -- Takes the free lock, or gives it to a waiter before this claim. Returns nil when another attempt has it then.
  local function claim_unheld()
    local waiting = read('ZCARD', queue)
    if type(waiting) == 'table' then
      return { 'foreign', queue }
    end
    local silent = read('HGET', waiters, 'handed')
    if type(silent) == 'table' then
      return { 'foreign', waiters }
    end
    if mode ~= 'x' then
      this.forget_group()
    end
    if waiting == 0 then
      return take(' ')
    end
    if silent then
      -- The last holder let its lease run out, and this is the first claim since.
      this.purge(this.read_note(silent), wake)
      redis.call('HDEL', waiters, 'handed')
    end
    -- The lock has waiters: none of them is passed over.
    local outcome, gone, taker = this.pass_on(attempt)
    if outcome == 'mine' then
      gone[#gone + 1] = attempt
    end
    local granted
    if outcome == 'nobody' or outcome == 'mine' then
      granted = take(redis.call('ZCARD', queue) > #gone and '+' or ' ')
      if granted[1] ~= 'granted' then
        if granted[1] == 'quarantined' and redis.call('ZSCORE', queue, attempt) then
          -- Its turn has come, and it keeps its place until it can be granted.
          enqueue('', 'none')
        end
        return granted
      end
    end
    this.drop(gone)
    if outcome == 'more' then
      -- In case the sender does not claim again.
      this.poke()
      return { 'more' }
    elseif granted then
      this.note_holder(wake, tonumber(lease_ms), record, 'g')
    else
      this.note_taker(taker)
    end
    local entered = granted and mode or taker and taker.mode
    if entered and entered ~= 'x' then
      this.make_room(entered)
    end
    return granted
  end

  -- Enters the group that holds the lock. Returns nil when that must wait.
  local function join_others()
    local mine = this.read_inside(attempt)
    if mine then
      -- A repeat, or the first that the waiter hears of a handoff.
      if guard then
        guard().note_leases(now / 1000)
      end
      this.extend(attempt, tonumber(lease_ms))
      return { 'granted', tonumber(mine.token), mine.slot }
    end
    local has_queue = redis.call('EXISTS', queue) == 1
    if has_queue and type(read('ZCARD', queue)) == 'table' then
      return { 'foreign', queue }
    elseif has_queue and type(read('HGET', waiters, attempt)) == 'table' then
      return { 'foreign', waiters }
    end
    -- Entries of the owner pass by the queue, whose head waits for them.
    local may_enter = string.sub(mode, 1, 1) == 'r'
    local is_more, is_cut = false, false
    if not may_enter and has_queue then
      may_enter, is_more, is_cut = this.let_in(mode, attempt)
      has_queue = redis.call('EXISTS', queue) == 1
    end
    may_enter = may_enter or not has_queue and redis.call('ZCARD', leases) < this.size_of(mode)
    if is_more and this.poke() == '' and is_cut and not may_enter then
      return { 'more' }
    end
    local granted = may_enter and take()
    if has_queue and granted and granted[1] == 'granted' then
      this.drop({ attempt })
      this.note_longest()
      this.make_room(mode)
    end
    return granted or nil
  end

  -- Returns the mode that this claim does not agree with, if there is one: all holders and waiters of a semaphore give it one size, unless
  -- they resize it. `other` is that of a holder.
  local function disagreement(held, other)
    other = other or held and this.read_value(held) and 'x'
    if not other then
      local first = read('ZRANGE', queue, 0, 0)[1]
      local waiter = first and first ~= attempt and this.read_waiter(first)
      other = waiter and waiter.mode or mode
      local RESIZES = '"resizes":true'
      if has_slots and waiter and string.find(record, RESIZES, 1, true) and string.find(waiter.text, RESIZES, 1, true) then
        return nil
      end
    end
    return (has_slots or string.sub(other, 1, 1) == 'p') and other ~= mode and other
  end

  local held, held_type = this.read_lock(value)
  local inside = held and this.read_group(held)
  local other_type = mode ~= 'x' and this.foreign_companion()
  if other_type then
    return { 'foreign', other_type }
  end
  if inside and (inside == mode or has_slots and string.sub(inside, 1, 1) == 'p') then
    -- Nothing is written unless a lease is over: a server without memory refuses a new token only to a new holder.
    local silent, is_less = this.drop_expired()
    this.purge(silent, wake)
    if (is_less or redis.call('ZCARD', leases) == 0) and not this.settle_group() then
      held, inside = nil, nil
    end
  elseif held and not inside then
    local holder, token = this.read_value(held)
    if holder == attempt then
      -- A repeat, or the first that the waiter hears of a handoff. A lease is never made shorter.
      if guard then
        guard().note_leases(now / 1000)
      end
      if redis.call('PTTL', lock) < tonumber(lease_ms) then
        redis.call('PEXPIRE', lock, lease_ms)
      end
      return { 'granted', tonumber(token) }
    end
  end
  if not held then
    local outcome = claim_unheld()
    if outcome then
      return outcome
    end
    held, held_type = this.read_lock()
    inside = held and this.read_group(held)
  end
  local is_alike, other = false, nil
  if inside then
    is_alike, other = this.goes_with(mode, record)
    -- A repeat is granted whatever the others are.
    is_alike = is_alike or has_slots and this.read_inside(attempt) ~= nil
    local outcome = is_alike and join_others()
    if outcome then
      return outcome
    end
  end
  local other_mode = not is_alike and disagreement(held, other)
  if other_mode then
    return { 'disagrees', other_mode }
  end

  local place, refused = enqueue(held, held_type)
  if refused then
    return refused
  end
  local left = redis.call('PTTL', lock)
  if inside then
    -- Room comes with the first lease that ends; for a claim of another mode, with the last.
    local shown, ends = this.show_one(is_alike and 0 or -1)
    held, left = shown or held, ends or left
  end
  return { 'busy', left, place, held or '', held_type }
end

for i = done + 1, #KEYS / 6 do
  local k, a = 6 * i - 6, 5 * i - 3
  local lock, queue, fence = KEYS[k + 1], KEYS[k + 2], KEYS[k + 4]
  local attempt, lease_ms, flags, record = ARGV[a + 1], ARGV[a + 2], ARGV[a + 4], ARGV[a + 5]
  local is_done, outcome, digits = true, nil, nil
  if now > tonumber(ARGV[a + 3]) then
    -- Its sender has given up on it, and perhaps released it already over another connection.
    outcome = { 'late' }
  elseif string.sub(flags, 1, 2) == 'x ' and redis.pcall('EXISTS', lock, queue) == 0 then
    -- The lock is free and has no waiters.
    is_done, outcome, digits = pcall(next_token, lock, fence, now, now_digits)
    if is_done and outcome then
      local value = attempt .. ' ' .. digits .. ' ' .. wake .. ' ' .. record
      local set = redis.pcall('SET', lock, value, 'PX', lease_ms)
      outcome = set.err and set or outcome
    elseif is_done then
      outcome = digits
    end
  else
    is_done, outcome =
      pcall(claim, lock, queue, KEYS[k + 3], fence, KEYS[k + 5], KEYS[k + 6], attempt, lease_ms, flags, record)
  end
  if not is_done then
    -- The error is the outcome of this claim alone. One of the script itself has no code.
    local text = type(outcome) == 'table' and outcome.err or outcome
    outcome = { err = string.match(text, '^%u+ ') and text or 'ERR ' .. text }
  end
  reply[i + 2] = outcome
end
return reply
