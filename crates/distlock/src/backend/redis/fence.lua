-- The token of the next grant. KEYS, ARGV, reply: none; the clock was read.
-- Sets the fence and answers the token and its digits: higher than every one before, and no lower than the clock in
-- microseconds, so that it rises even when the fence was lost. Nil, and the fence as it was, when it is not one of ours;
-- then the second answer is what the server says when it refuses to write.
local FENCE_MS = '604800000'
local function next_token(fence)
  -- A fence further ahead of the clock than a day was not made by us.
  local most = now + 86400000000
  local last = redis.pcall('SET', fence, now_digits, 'PX', FENCE_MS, 'GET')
  local is_set = type(last) ~= 'table'
  if not is_set then
    -- Not a string, or no memory, or a server before 6.2, which does not know GET.
    last = redis.pcall('GET', fence)
    if type(last) == 'table' then
      return nil, last
    end
  end
  local number = last and tonumber(last)
  if last and (not number or number > most) then
    if is_set then
      redis.call('SET', fence, last, 'PX', FENCE_MS)
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
  end
  return token, digits
end
