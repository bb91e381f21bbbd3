-- The token of the next grant. KEYS, ARGV, reply: none; the clock was read.
-- Sets the fence and answers the token and its digits: higher than every one before, and no lower than the clock in
-- microseconds, so that it rises even when the fence was lost. Nil, and the fence as it was, when it is not one of ours;
-- then the second answer is what the server says when it refuses to write.
-- It stays for a week after the last grant, and up to an hour more: its end is set at the first grant of each hour only.
local FENCE_MS, HOUR_US = '608400000', 3600000000
local function next_token(fence)
  -- A fence further ahead of the clock than a day was not made by us.
  local most = now + 86400000000
  -- Its end stays, so that one that is not ours can be put back as it was.
  local last = redis.pcall('SET', fence, now_digits, 'KEEPTTL', 'GET')
  local is_set = type(last) ~= 'table'
  if not is_set then
    -- Not a string, or no memory, or a server before 6.2, which does not know GET.
    last = redis.pcall('GET', fence)
    if type(last) == 'table' then
      return nil, last
    end
  end
  local number = last and tonumber(last)
  -- What is no number at all ('nan') is not below anything either.
  if last and not (number and number <= most) then
    if is_set then
      redis.call('SET', fence, last, 'KEEPTTL')
    end
    return nil
  end
  local token, digits = now, now_digits
  if number and number >= now then
    -- Lua's own tostring loses digits from 10^14 on.
    token, digits = number + 1, string.format('%.0f', number + 1)
  end
  if not is_set or token ~= now then
    local set = redis.pcall('SET', fence, digits, 'PX', FENCE_MS)
    if set.err then
      return nil, set
    end
  elseif not number or number < now - now % HOUR_US then
    redis.call('PEXPIRE', fence, FENCE_MS)
  end
  return token, digits
end

-- Where the restart guard is on, it notes the leases of the sender: a repeat needs no token, and makes a lease whole.
local function note_leases() end
