-- KEYS: node, then lock and fence of each; ARGV: nonce, guard (1: on), then attempt, ballot, ttl_ms, wake and record of each; reply: nonce, then of each 1 (renewed) | 2 (set again) | 0 (superseded) | -1 (held by another) | -2 (no memory)
-- Servers before 7.0 do not know GT.
local reply, knows_gt, longest = { ARGV[1] }, true, 0
for i = 1, (#KEYS - 1) / 2 do
  local lock, fence = KEYS[2 * i], KEYS[2 * i + 1]
  local attempt, ballot, ttl_ms, rest = ARGV[4 * i - 1], ARGV[4 * i], ARGV[4 * i + 1], ARGV[4 * i + 2]
  local head = attempt .. ' ' .. ballot .. ' '
  local held = redis.pcall('GETRANGE', lock, 0, #head - 1)
  local vote
  if held == head then
    -- A renewal that arrives late never makes a lease shorter.
    if knows_gt and type(redis.pcall('PEXPIRE', lock, ttl_ms, 'GT')) == 'table' then
      knows_gt = false
    end
    if not knows_gt and redis.call('PTTL', lock) < tonumber(ttl_ms) then
      redis.call('PEXPIRE', lock, ttl_ms)
    end
    vote = 1
  elseif held == '' or type(held) == 'string' and string.sub(held, 1, 33) == attempt .. ' ' then
    -- Missing here: the node restarted, or its clock leapt, or the claim never came. Nobody has taken it since unless
    -- the fence has moved on; a release moves it, too.
    local last = redis.pcall('GET', fence)
    if type(last) == 'table' or (tonumber(last or 0) or math.huge) > tonumber(ballot) then
      vote = 0
    else
      local value = head .. rest
      vote = -1
      if held ~= '' then
        -- An earlier ballot of the same attempt.
        redis.call('DEL', lock)
      end
      -- Under a full memory this node does not heal, and the others are renewed all the same.
      if redis.pcall('SET', fence, ballot, 'PX', 604800000).err then
        vote = -2
      elseif redis.call('SET', lock, value, 'NX', 'PX', ttl_ms) then
        vote = 2
      end
    end
  else
    vote = -1
  end
  if vote > 0 then
    longest = math.max(longest, tonumber(ttl_ms))
  end
  reply[i + 1] = vote
end

-- How far the leases of this node reach, for the day when another one has forgotten its own.
if ARGV[2] == '1' and longest > 0 then
  local seen = redis.pcall('GET', KEYS[1])
  local head, horizon, most
  if type(seen) == 'string' then
    head, horizon, most = string.match(seen, '^(%x+ %d+ %d+ %d+) (%d+) (%d+)$')
  end
  if head then
    local clock = redis.call('TIME')
    local now = clock[1] * 1000000 + clock[2]
    horizon, most = tonumber(horizon), tonumber(most)
    if now + longest * 1000 > horizon or longest * 1000 > most then
      horizon, most = math.max(horizon, now + longest * 1250), math.max(most, longest * 1250)
      redis.pcall('SET', KEYS[1], string.format('%s %.0f %.0f', head, horizon, most))
    end
  end
end
return reply
