-- Writes the lock. KEYS, ARGV: as in head.lua; reply: none.
-- The byte behind the attempt says whether somebody waits: ' ' for nobody, '+' for somebody.
local function set_lock(id, mark, token, channel, text, lease_ms)
  local value = id .. mark .. string.format('%.0f', token) .. ' ' .. channel .. ' ' .. text
  return redis.pcall('SET', lock, value, 'PX', lease_ms)
end
