-- The short way of claims: exclusive claims that queue for a lock that one attempt of ours holds. KEYS, ARGV, reply: those of claim.lua, which follows; to one claim alone a text.
-- It defines no function, since the server would make each anew at every call, and converts few numbers. The first claim of the call that
-- is not so simple ends it: claim.lua carries out that one and those behind it, so that claims take effect in their order. What is written
-- here of that one by then claim.lua writes as well: it keeps a place that stands.
local call, sub = redis.pcall, string.sub
local clock = redis.call('TIME')
local micros = clock[2]
local now = clock[1] * 1000000 + micros
local now_digits = clock[1] .. (#micros == 6 and micros or string.rep('0', 6 - #micros) .. micros)
local wake = ARGV[2]
local reply, done = { ARGV[1], now }, 0
for i = 1, wake == '-' and 0 or #KEYS / 6 do
  local k, a = 6 * i - 6, 5 * i - 3
  local lock, queue, waiters = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  local attempt, lease_ms, not_after, flags = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  -- As digits: where there are as many of them, text compares like numbers. Flags like 'x 10000 0': exclusive, without a delay.
  if #not_after ~= 16 or now_digits > not_after or sub(flags, 1, 2) ~= 'x ' or sub(flags, -2) ~= ' 0' then
    break
  end
  local heartbeat = sub(flags, 3, -3) + 0
  -- A lock that is free, or that never expires, is none of ours.
  local lease_left = call('PTTL', lock)
  if type(lease_left) ~= 'number' or lease_left < 0 or heartbeat == 0 then
    break
  end
  local value = call('GETRANGE', lock, '0', '4095')
  if type(value) ~= 'string' or string.match(value, '^%x+()[ +]%d+ %S+ {') ~= 33 or sub(value, 1, 32) == attempt then
    break
  end

  local ticket = i == 1 and now_digits or string.format('%.0f', now + i - 1)
  local added = call('ZADD', queue, 'NX', ticket, attempt)
  local place
  if added == 0 then
    place = call('ZRANK', queue, attempt)
  elseif added == 1 then
    local last = call('ZRANGE', queue, '-2', '-1')
    if last[#last] ~= attempt then
      -- The clock was set back, or has not moved on: claim.lua finds the ticket.
      call('ZREM', queue, attempt)
      break
    end
    -- The first or not: how far behind makes no difference where messages come in.
    place = #last - 1
  else
    break
  end
  local alive_until = now / 1000 + heartbeat
  -- Lua prints 13 digits as they are.
  local entry = lease_ms .. ' ' .. alive_until - alive_until % 1 .. ' ' .. wake .. ' 0 x ' .. ARGV[a + 5]
  local kept = call('HSET', waiters, attempt, entry)
  -- The waiters' key may have outlived an earlier queue, so the ends of both count.
  local left = call('PTTL', waiters)
  local left_of_queue = added == 1 and place == 0 and 0 or call('PTTL', queue)
  if type(place) ~= 'number' or type(kept) ~= 'number' or type(left) ~= 'number' or type(left_of_queue) ~= 'number' then
    break
  elseif left > LONGEST_HEARTBEAT_MS or left_of_queue > LONGEST_HEARTBEAT_MS or heartbeat > LONGEST_HEARTBEAT_MS then
    break
  elseif left < heartbeat or left_of_queue < heartbeat then
    local is_kept = call('PEXPIRE', queue, LONGEST_HEARTBEAT) == 1
    if not is_kept or call('PEXPIRE', waiters, LONGEST_HEARTBEAT) ~= 1 then
      break
    end
  end
  if sub(value, 33, 33) == ' ' and call('SETRANGE', lock, '32', '+') ~= #value then
    break
  end
  if #KEYS == 6 then
    -- Of one claim as one text: nonce, now_us, pttl_ms, place, value. To make and to read it costs less than a table does.
    return ARGV[1] .. ' ' .. now_digits .. ' ' .. lease_left .. ' ' .. place .. ' ' .. value
  end
  reply[i + 2] = { 'busy', lease_left, place, value, 'string' }
  done = i
end
if done == #KEYS / 6 then
  return reply
end
