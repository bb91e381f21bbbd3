-- KEYS: history; ARGV: nonce, most entries, ttl_ms, number of entries, the entries; reply: nonce, 1, or 0 and the type when the key is not ours
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'stream' then
  return { ARGV[1], 0, kind }
end
for i = 5, 4 + ARGV[4] do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'entry', ARGV[i])
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return { ARGV[1], 1 }
