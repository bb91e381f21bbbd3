-- KEYS: two that share no hash slot, or none; ARGV: the command to publish with, a channel, whether INFO is needed; reply: for publishing and for INFO the server's refusal, or ''
local function refusal(...)
  local reply = redis.pcall(...)
  return type(reply) == 'table' and reply.err or ''
end
return { refusal(ARGV[1], ARGV[2], ''), ARGV[3] == '1' and refusal('INFO', 'server') or '' }
