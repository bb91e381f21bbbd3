-- KEYS: node's note, then lock and fence of each; ARGV: nonce, restart_guard (1: on), then attempt, ballot, ttl_ms, channel and record, known_ballot (0: none) of each; reply: nonce, then of each 1 (renewed) | 2 (set again) | 0 (ended) | -1 (held by another) | -2 (no memory) | above 2 (missing, and this higher ballot is the last)
-- Whether a hold with `ballot` was ended by force here.
local function is_ended(fence, ballot)
  local ended = redis.pcall('GET', fence .. ':f')
  return type(ended) == 'string' and (tonumber(ended) or 0) >= tonumber(ballot)
end

-- Servers before 7.0 do not know GT.
local reply, knows_gt, longest_ms = { ARGV[1] }, true, 0
for i = 1, (#KEYS - 1) / 2 do
  local lock, fence = KEYS[2 * i], KEYS[2 * i + 1]
  local attempt, ballot, ttl_ms, channel_and_record, known_ballot = unpack(ARGV, 5 * i - 2, 5 * i + 2)
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
    -- Missing: the node restarted, or its clock leapt, or the claim never came.
    local last = redis.pcall('GET', fence)
    last = type(last) ~= 'table' and tonumber(last or 0)
    if not last or last >= 2 ^ 53 then
      -- The fence is not ours.
      vote = 0
    elseif last > tonumber(ballot) and string.format('%.0f', last) ~= known_ballot then
      -- Another claim was voted for or given up here, or this hold was released. The holder knows which: if it still has a
      -- majority, it asks again by this ballot, and the node sets the lock if nothing has happened here since.
      vote = last
    elseif last > tonumber(ballot) and is_ended(fence, ballot) then
      vote = 0
    else
      -- No other claim was voted for here since a moment at which this attempt was the holder. The ballot never falls.
      local value, digits = head .. channel_and_record, string.format('%.0f', math.max(last, ballot))
      vote = -1
      if held ~= '' then
        -- An earlier ballot of the same attempt.
        redis.call('DEL', lock)
      end
      -- Without memory this lock is not set again, and the others are renewed all the same.
      if redis.pcall('SET', fence, digits, 'PX', 604800000).err then
        vote = -2
      elseif redis.call('SET', lock, value, 'NX', 'PX', ttl_ms) then
        vote = 2
      end
    end
  else
    vote = -1
  end
  if vote == 1 or vote == 2 then
    longest_ms = math.max(longest_ms, tonumber(ttl_ms))
  end
  reply[i + 1] = vote
end

-- Notes when the leases of this node end, in case another node loses its data.
if ARGV[2] == '1' and longest_ms > 0 then
  local note = redis.pcall('GET', KEYS[1])
  local head, leases_end, max_lease
  if type(note) == 'string' then
    head, leases_end, max_lease = string.match(note, '^(%x+ %d+ %d+ %d+) (%d+) (%d+)$')
  end
  if head then
    local clock = redis.call('TIME')
    local now = clock[1] * 1000000 + clock[2]
    leases_end, max_lease = tonumber(leases_end), tonumber(max_lease)
    if now + longest_ms * 1000 > leases_end or longest_ms * 1000 > max_lease then
      leases_end, max_lease = math.max(leases_end, now + longest_ms * 1250), math.max(max_lease, longest_ms * 1250)
      redis.pcall('SET', KEYS[1], string.format('%s %.0f %.0f', head, leases_end, max_lease))
    end
  end
end
return reply
