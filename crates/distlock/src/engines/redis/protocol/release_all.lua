-- KEYS: lock, queue, waiters, fence, holders, leases of each release; ARGV: nonce, then the attempt of each; reply: nonce, then of each a number (released, and nobody waited) or an outcome (release.lua)
local reply = { ARGV[1] }
for i = 1, #KEYS / 6 do
  local k, attempt = 6 * i - 6, ARGV[i + 1]
  local lock = KEYS[k + 1]
  local held = redis.pcall('GETRANGE', lock, '0', '32')
  if held == attempt .. ' ' then
    reply[i + 1] = redis.pcall('DEL', lock)
  else
    local is_done, answer =
      pcall(release, lock, KEYS[k + 2], KEYS[k + 3], KEYS[k + 4], KEYS[k + 5], KEYS[k + 6], attempt, held)
    reply[i + 1] = is_done and answer or failure(answer)
  end
end
return reply
