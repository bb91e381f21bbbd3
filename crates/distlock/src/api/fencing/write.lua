-- KEYS: value, its token. ARGV: token, value. Reply: 1 when written, 0 when the token is lower than the last one.
local last = redis.call('GET', KEYS[2]) or '0'
-- As text: Lua's numbers are exact up to 2^53 only. Tokens have no leading zeros, so the longer one is the higher.
local token = ARGV[1]
if #token < #last or (#token == #last and token < last) then
    return 0
end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], token)
return 1
