-- No grant before every lease is over that the server may have forgotten. KEYS: as in head.lua; ARGV: as in head.lua, and at the end as in guard_leases.lua; reply: none.
-- The canary says which server has granted so far, since when, and for how long at most. When it names another one, or
-- is not there, then the server was restarted, promoted or emptied.

-- How much the server has received from a master; nil where it does not say (before 7.0).
local function replicated()
  return string.match(redis.call('INFO', 'stats'), 'total_net_repl_input_bytes:(%d+)')
end

-- Whether only the name of the server's history has changed: it does when a replica attaches to a master without a backlog, and
-- when the backlog ends. Both forget the second name, which a promotion sets; and none of them receives data from a master.
local function is_renamed(known, run_id, replication)
  if string.match(known or '', '^(%x+):') ~= run_id then
    return false
  end
  local second = string.match(replication, 'master_replid2:(%x+)')
  local input = text_of(redis.pcall('HGET', classes, 'input'))
  return second ~= nil and not string.find(second, '[^0]') and input ~= nil and input == replicated()
end

-- Begins a quarantine. Returns how many ms it lasts; a table when the server refuses to write.
local function begin_quarantine(identity, longest)
  longest = math.max(longest, tonumber(learned_ms), tonumber(text_of(redis.pcall('HGET', classes, 'longest'))) or 0)
  -- A renewal may have noted a lease since the canary was lost.
  longest = math.max(longest, longest_lease(longest, now / 1000))
  for length in string.gmatch(own_leases, ':(%d+):%d+') do
    longest = math.max(longest, tonumber(length))
  end
  local refused = write_canary(identity, now, longest)
  if refused then
    return refused
  end
  -- It counts as if it had been granted now: others may have one that long from before.
  note_lease(longest, now / 1000 + longest, now / 1000)
  redis.pcall('HSET', classes, 'input', replicated() or '-')
  return math.max(1, longest)
end

-- How many ms are left; a table when the server refuses to read or write the canary.
local function quarantine()
  local replication = redis.call('INFO', 'replication')
  local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  -- The first changes with every start, the second with every promotion, and otherwise too.
  local identity = run_id .. ':' .. string.match(replication, 'master_replid:(%x+)')
  local kept = redis.pcall('GET', canary)
  if type(kept) == 'table' then
    return kept
  end
  local known, since, longest = read_canary(kept)
  local is_same = known == identity
  if not is_same and not is_renamed(known, run_id, replication) then
    return begin_quarantine(identity, longest)
  end
  local is_over = since / 1000 + longest <= now / 1000
  local refused
  local most = is_over and longest or math.max(tonumber(learned_ms), longest_lease(longest, now / 1000))
  if longest < most or not is_same then
    refused = write_canary(identity, since, math.max(longest, most))
  end
  refused = refused or note_leases(now / 1000)
  if refused then
    return refused
  elseif is_same and redis.pcall('HGET', classes, 'input') == false then
    -- The canary is from an older version of us.
    redis.pcall('HSET', classes, 'input', replicated() or '-')
  end
  if is_over then
    return 0
  end
  local _, begun, lasts = read_canary(text_of(redis.pcall('GET', canary)))
  return math.max(0, math.ceil(((begun or 0) - now) / 1000 + lasts))
end

local unguarded_token = next_token
local function next_token(fence)
  local left = quarantine()
  if type(left) == 'table' then
    return nil, left
  elseif left > 0 then
    return nil, { 'quarantined', left }
  end
  return unguarded_token(fence)
end
