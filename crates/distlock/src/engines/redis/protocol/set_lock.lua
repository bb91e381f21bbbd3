-- Writes the lock of one. KEYS, ARGV: as in head.lua; reply: none.
-- The byte behind the attempt says whether somebody waits: ' ' for nobody, '+' for somebody.
local function set_lock(id, mark, token, channel, text, lease_ms)
  return redis.pcall('SET', lock, id .. mark .. token .. ' ' .. channel .. ' ' .. text, 'PX', lease_ms)
end
