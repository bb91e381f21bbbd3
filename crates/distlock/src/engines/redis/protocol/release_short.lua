-- The short way of releases: of locks without waiters, and of those whose first waiter lives and waits for an exclusive lock. KEYS, ARGV, reply: those of release.lua, which follows; to one release alone, if it hands over, a text.
-- It defines no function, since the server would make each anew at every call, and converts no number. The first release of the call that
-- is not so simple ends it: release.lua carries out that one, whose lock begins with `known`, and those behind it. A lock that was
-- set for a waiter here it hands over anew: to that waiter, or to the next if that one does not hear.
local call, sub = redis.pcall, string.sub
local reply, done, known, now_digits = { ARGV[1] }, 0, nil, nil
-- The locks and fences that this call has made a token for. The grants of a call may have one token if they are of different locks.
local made = #KEYS > 6 and {}
for i = 1, #KEYS / 6 do
  local k, attempt = 6 * i - 6, ARGV[i + 1]
  local lock, queue, waiters, fence = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4]
  local held = call('GETRANGE', lock, '0', '32')
  known = held
  if held == attempt .. ' ' then
    reply[i + 1] = call('DEL', lock)
  elseif guard or held ~= attempt .. '+' then
    -- The restart guard decides about every grant.
    break
  else
    local first = call('ZRANGE', queue, '0', '1')
    local id, behind = first[1], first[2]
    local entry = id and call('HGET', waiters, id)
    if type(entry) ~= 'string' then
      break
    end
    -- That of an exclusive claim without a delay, and where its record begins.
    local ttl_ms, alive_until, channel, at = string.match(entry, '^(%d+) (%d+) (%x+) 0 x (){')
    if not now_digits then
      local clock = redis.call('TIME')
      local micros = clock[2]
      now_digits = clock[1] .. (#micros == 6 and micros or string.rep('0', 6 - #micros) .. micros)
    end
    -- As digits: where there are as many of them, text compares like numbers.
    local now_ms = sub(now_digits, 1, 13)
    if not at or #alive_until ~= 13 or alive_until <= now_ms then
      break
    end
    -- As `next_token`, where the fence was set before, in the same 1000 seconds.
    if not made or not made[fence] or made[lock] then
      local last = call('SET', fence, now_digits, 'KEEPTTL', 'GET')
      if type(last) ~= 'string' then
        break
      elseif #last ~= 16 or last >= now_digits or sub(last, 1, 7) ~= sub(now_digits, 1, 7) or string.find(last, '%D') then
        call('SET', fence, last, 'KEEPTTL')
        break
      end
    end
    if made then
      made[fence], made[lock] = true, true
    end
    local text, first_ms = sub(entry, at), #ttl_ms > 3 and FIRST_LEASE or ttl_ms
    local given = id .. (behind and '+' or ' ') .. now_digits .. ' ' .. channel .. ' ' .. text
    if call('SET', lock, given, 'PX', first_ms).err then
      break
    end
    local told = 'grant ' .. id .. ' ' .. now_digits .. ' ' .. now_digits .. ' ' .. first_ms
    local heard
    if is_sharded then
      heard = call('SPUBLISH', 'distlock:wake:' .. fence .. ':' .. channel, told)
    else
      heard = call('PUBLISH', 'distlock:wake:' .. channel, told)
    end
    if type(heard) ~= 'number' or heard == 0 then
      break
    end
    -- As `drop` and `note_taker`. In a record of ours 'lapses' stands before the last field.
    if not behind then
      call('DEL', queue, waiters)
    elseif type(call('ZREM', queue, id)) ~= 'number' then
      break
    else
      local kind = string.find(text, '"lapses":true', -48, true) and ' hl' or ' h'
      -- Before the entry goes: the key stays, with its end.
      call('HSET', waiters, 'handed', channel .. ' ' .. now_ms .. ' ' .. ttl_ms .. kind)
      if type(call('HDEL', waiters, id)) ~= 'number' then
        break
      end
    end
    if not made then
      -- Of one release as one text, which costs less than a table does.
      return ARGV[1] .. ' 2'
    end
    reply[i + 1] = 2
  end
  done, known = i, nil
end
if done == #KEYS / 6 then
  return reply
end

