-- Notes in the canary how long leases are. KEYS: any; ARGV: any, and at the end the canary's key and the longest lease in ms; reply: none.
local kept = redis.pcall('GET', ARGV[#ARGV - 1])
local before, longest = string.match(type(kept) == 'string' and kept or '', '^(%S+ %d+ )(%d+)$')
if before and tonumber(longest) < tonumber(ARGV[#ARGV]) then
  redis.pcall('SET', ARGV[#ARGV - 1], before .. ARGV[#ARGV])
end
