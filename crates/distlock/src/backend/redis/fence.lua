-- The token of the next grant. KEYS, ARGV: as in head.lua; reply: none.
-- Sets the fence and answers the token: higher than every one before, and no lower than the clock in microseconds, so
-- that it rises even when the fence was lost. Nil, and the fence as it was, when it is not one of ours. The second
-- answer is what the server says when it refuses to write.
local function next_token()
  -- A fence further ahead of the clock than a day was not made by us.
  local most = now + 86400000000
  -- Lua's own tostring loses digits from 10^14 on.
  local token, digits = now, string.format('%.0f', now)
  local last = redis.pcall('SET', fence, digits, 'PX', 604800000, 'GET')
  if type(last) == 'table' then
    -- Not a string, or no memory, or a server before 6.2, which does not know GET.
    last = redis.pcall('GET', fence)
    if type(last) == 'table' then
      return nil, last
    end
    local number = last and tonumber(last) or 0
    if last and (not number or number > most) then
      return nil
    end
    token = math.max(number + 1, now)
    local set = redis.pcall('SET', fence, string.format('%.0f', token), 'PX', 604800000)
    if set.err then
      return nil, set
    end
  elseif last then
    local number = tonumber(last)
    if not number or number > most then
      redis.call('SET', fence, last, 'PX', 604800000)
      return nil
    end
    if number >= now then
      token = number + 1
      redis.call('SET', fence, string.format('%.0f', token), 'PX', 604800000)
    end
  end
  return token
end
