-- KEYS: history; ARGV: nonce, most entries; reply: nonce, the last entries, the newest first
local found = redis.pcall('XREVRANGE', KEYS[1], '+', '-', 'COUNT', ARGV[2])
if found and found.err then
  return found
end
local reply = { ARGV[1] }
-- With a count of 0 the server replies nil.
for _, stored in ipairs(found or {}) do
  -- Each has one field: its name, then the line. A longer one is not ours, and would hold up all that is behind it.
  local line = stored[2][2]
  if #line <= 4096 then
    reply[#reply + 1] = line
  end
end
return reply
