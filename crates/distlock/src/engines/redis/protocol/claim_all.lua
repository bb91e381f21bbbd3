-- Claims all locks, or none. KEYS: lock, queue, waiters, fence, holders, leases of each; ARGV: nonce, wake, not_after_us, then attempt, lease_ms, record of each; reply: nonce, now_us, outcome, ...
-- Outcomes: 'granted', token of each | 'busy', which (from 1) | 'late' | 'fence', key | 'quarantined', left_ms.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local now_digits = clock[1] .. string.rep('0', 6 - #clock[2]) .. clock[2]
local nonce, wake = ARGV[1], ARGV[2]
local count = #KEYS / 6
-- Its sender has given up on it, and perhaps released the locks already over another connection.
if now > tonumber(ARGV[3]) then
  return { nonce, now, 'late' }
end

-- First reads all of them: nothing is written when one is held or has waiters.
local tokens = {}
for i = 1, count do
  local lock, queue, attempt = KEYS[6 * i - 5], KEYS[6 * i - 4], ARGV[3 * i + 1]
  if redis.call('EXISTS', lock, queue) > 0 then
    local held = read('GETRANGE', lock, 0, 127)
    local holder, token = string.match(type(held) == 'string' and held or '', '^(%x+)[ +](%d+) ')
    if holder ~= attempt then
      return { nonce, now, 'busy', i }
    end
    tokens[i] = tonumber(token)
  end
end

-- The tokens before the locks: a fence that is not ours, or a server that must not write, shows before a lock is written.
local values = {}
for i = 1, count do
  if not tokens[i] then
    local token, digits = next_token(KEYS[6 * i - 5], KEYS[6 * i - 2], now, now_digits)
    if not token then
      return digits.err and digits or { nonce, now, unpack(digits) }
    end
    tokens[i] = token
    values[i] = ARGV[3 * i + 1] .. ' ' .. digits .. ' ' .. wake .. ' ' .. ARGV[3 * i + 3]
  end
end
for i = 1, count do
  local lock, lease_ms = KEYS[6 * i - 5], ARGV[3 * i + 2]
  if values[i] then
    local set = redis.pcall('SET', lock, values[i], 'PX', lease_ms)
    if set.err then
      for j = 1, i - 1 do
        if values[j] then
          redis.call('DEL', KEYS[6 * j - 5])
        end
      end
      return set
    end
  elseif redis.call('PTTL', lock) < tonumber(lease_ms) then
    -- A repeat. A lease is never made shorter.
    if guard then
      guard().note_leases(now / 1000)
    end
    redis.call('PEXPIRE', lock, lease_ms)
  end
end
return { nonce, now, 'granted', unpack(tokens) }
