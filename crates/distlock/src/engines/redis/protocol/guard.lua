-- The restart guard: no grant before every lease is over that the server may have forgotten. KEYS: those of the script; ARGV: those of the script, and at the end the canary's key and what the sender knows: the longest lease that others may have, then of its own that may be alive each ':length:left', all in ms; reply: none.
-- The canary says 'identity since_us longest_ms': which server has granted so far, since when, and for how long at most. When it names another
-- server, or is not there, then the server was restarted, promoted or emptied. The first two stay when the longest goes down, and only then.
-- A hash beside it lets the longest lease be forgotten:
--   a class (a power of two) -> 'longest_ms until_ms': of the leases of that length, the longest, and until when one may last
--   'longest'  what the canary was given as the longest; where it differs, an older version of us wrote the canary
--   'input'    how much the server had received from a master when it got its identity
local is_sharded, functions = false, nil

-- Returns the functions of the guard. Defines them at the first call: a script that grants and renews nothing does not pay for them.
local function guard()
  if functions then
    return functions
  end
  local canary = ARGV[#ARGV - 1]
  local learned_ms, own_leases = string.match(ARGV[#ARGV], '^(%d+)(.*)$')
  local classes = string.sub(canary, 1, -2) .. 'l:g'
  -- A class counts for so long after its last lease: a replica or a file that lacks the last hour is made up for.
  local REMEMBERED_MS = 3600000

  -- Returns a reply of type string, and nil for all others.
  local function text_of(reply)
    return type(reply) == 'string' and reply or nil
  end

  -- Parses the canary.
  local function read_canary(kept)
    local identity, since, longest = string.match(kept or '', '^(%S+) (%d+) (%d+)$')
    return identity, tonumber(since), tonumber(longest) or 0
  end

  -- Writes the canary. Returns what the server says when it refuses.
  local function write_canary(identity, since, longest)
    local set = redis.pcall('SET', canary, string.format('%s %.0f %.0f', identity, since, longest))
    if set.err then
      return set
    end
    local noted = redis.pcall('HSET', classes, 'longest', string.format('%.0f', longest))
    return type(noted) == 'table' and noted or nil
  end

  -- Notes that a lease of this length may last until then. Returns whether that was news, and what the server refuses it by.
  local function note_lease(length, ends_ms, now_ms)
    local class = 1
    while class * 2 <= length do
      class = class * 2
    end
    local field = string.format('%.0f', class)
    local longest, until_ms = string.match(text_of(redis.pcall('HGET', classes, field)) or '', '^(%d+) (%d+)$')
    longest, until_ms = tonumber(longest) or 0, tonumber(until_ms) or 0
    if length <= longest and ends_ms <= until_ms then
      return false
    elseif until_ms + REMEMBERED_MS < now_ms then
      longest = 0
    end
    -- For a while longer, so that not every renewal writes.
    local noted = string.format('%.0f %.0f', math.max(length, longest), math.max(ends_ms + length / 4, until_ms))
    local set = redis.pcall('HSET', classes, field, noted)
    return true, type(set) == 'table' and set or nil
  end

  -- Returns the longest lease that counts, given what the canary says, and drops the classes that do not.
  local function longest_lease(kept_longest, now_ms)
    local longest, is_ours = 0, false
    local all = redis.pcall('HGETALL', classes)
    for i = 1, all.err and 0 or #all, 2 do
      local length, until_ms = string.match(all[i + 1], '^(%d+) (%d+)$')
      if all[i] == 'longest' then
        is_ours = tonumber(all[i + 1]) == kept_longest
      elseif length and tonumber(until_ms) + REMEMBERED_MS < now_ms then
        redis.pcall('HDEL', classes, all[i])
      elseif length then
        longest = math.max(longest, tonumber(length))
      end
    end
    if not is_ours and kept_longest > 0 then
      -- An older version of us knows of a lease that long. Noted once, or it would count for ever.
      note_lease(kept_longest, now_ms + kept_longest, now_ms)
      redis.pcall('HSET', classes, 'longest', string.format('%.0f', kept_longest))
      longest = math.max(longest, kept_longest)
    end
    return longest
  end

  -- Notes the sender's own leases. Returns what the server says when it refuses.
  local function note_leases(now_ms)
    local is_news = false
    for length, left in string.gmatch(own_leases, ':(%d+):(%d+)') do
      local is_new, refused = note_lease(tonumber(length), now_ms + left, now_ms)
      if refused then
        return refused
      end
      is_news = is_news or is_new
    end
    local identity, since, kept_longest = read_canary(is_news and text_of(redis.pcall('GET', canary)))
    if not identity then
      return nil
    end
    local longest = longest_lease(kept_longest, now_ms)
    local is_over = since / 1000 + kept_longest <= now_ms
    if longest > kept_longest then
      -- After a quarantine a longer lease needs none of its own. It gets a new 'since' all the same (a time of ms read as one of
      -- us is long ago): a client that has not seen the quarantine must not take what others forgot for what is over.
      return write_canary(identity, is_over and now_ms or since, longest)
    elseif longest < kept_longest and is_over then
      return write_canary(identity, since, longest)
    end
  end

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
  local function begin_quarantine(identity, longest, now)
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
  local function quarantine(now)
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
      return begin_quarantine(identity, longest, now)
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

  -- Notes the sender's own leases at a renewal.
  local function note_renewal()
    local clock = redis.call('TIME')
    note_leases(clock[1] * 1000 + math.floor(clock[2] / 1000))
  end

  functions = { quarantine = quarantine, note_leases = note_leases, note_renewal = note_renewal }
  return functions
end
