-- KEYS: lock, queue, waiters, fence, holders, leases of each claim; ARGV: nonce, wake, then attempt, lease_ms, not_after_us, how, record of each; reply: nonce, now_us, then of each its token or an outcome (claim.lua)
-- How: the word (group.lua), heartbeat_ms (0: no queue), and delay_ms (a part of lease_ms), with spaces between.
local reply = { ARGV[1], now }
for i = 1, #KEYS / 6 do
  local k, a = 6 * i - 6, 5 * i - 3
  local lock, queue, fence = KEYS[k + 1], KEYS[k + 2], KEYS[k + 4]
  local attempt, lease_ms, how, record = ARGV[a + 1], ARGV[a + 2], ARGV[a + 4], ARGV[a + 5]
  local outcome
  if now > tonumber(ARGV[a + 3]) then
    -- Its sender has given up on it, and perhaps released it already by another way.
    outcome = { 'late' }
  elseif string.sub(how, 1, 2) == 'x ' and redis.pcall('EXISTS', lock, queue) == 0 then
    -- It is free, and nobody waits.
    local is_done, token, digits = pcall(next_token, fence)
    if is_done and token then
      local value = attempt .. ' ' .. digits .. ' ' .. wake .. ' ' .. record
      local set = redis.pcall('SET', lock, value, 'PX', lease_ms)
      outcome = set.err and set or token
    else
      outcome = is_done and (digits or { 'fence' }) or failure(token)
    end
  else
    local is_done, answer =
      pcall(claim, lock, queue, KEYS[k + 3], fence, KEYS[k + 5], KEYS[k + 6], attempt, lease_ms, how, record)
    outcome = is_done and answer or failure(answer)
  end
  reply[i + 2] = outcome
end
return reply
