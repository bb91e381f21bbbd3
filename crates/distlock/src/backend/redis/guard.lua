-- No grant before every lease is over that the server may have forgotten. KEYS: as in head.lua; ARGV: as in head.lua, and at the end the canary's key and the longest lease in ms; reply: none.
-- The canary says which server has granted so far, since when, and for how long at most. When it names another one, or
-- is not there, then the server was restarted, promoted or emptied.
local canary, longest_ms = ARGV[#ARGV - 1], tonumber(ARGV[#ARGV])

-- How many ms are left; a table when the server refuses to read or write the canary.
local function quarantine()
  -- The first changes with every start, the second with every promotion.
  local identity = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
    .. ':' .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
  local kept = redis.pcall('GET', canary)
  if type(kept) == 'table' then
    return kept
  end
  local known, since, longest = string.match(kept or '', '^(%S+) (%d+) (%d+)$')
  since, longest = tonumber(since), tonumber(longest) or 0
  local is_over = known == identity and since / 1000 + longest <= now / 1000
  if known ~= identity or longest < longest_ms then
    if known ~= identity then
      since = now
    elseif is_over then
      -- What was forgotten is over: a longer lease from now on is remembered, and needs no quarantine of its own.
      since = 0
    end
    longest = math.max(longest, longest_ms)
    local set = redis.pcall('SET', canary, string.format('%s %.0f %.0f', identity, since, longest))
    if set.err then
      return set
    end
  end
  if is_over then
    return 0
  end
  return math.max(0, math.ceil((since - now) / 1000 + longest))
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
