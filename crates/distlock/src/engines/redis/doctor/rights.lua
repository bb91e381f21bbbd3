-- Tries what locking calls, and leaves nothing behind. KEYS: a lock and its fence, both unused, and its history if one is kept; ARGV: the command to publish with, the channel; reply: a name and a reason for each call that is refused.
local refused = {}
local function try(name, ...)
  local reply = redis.pcall(name, ...)
  if type(reply) == 'table' and reply.err then
    refused[#refused + 1] = name
    refused[#refused + 1] = reply.err
  end
  return reply
end
for i = 1, 2 do
  local key = KEYS[i]
  -- A foreign key there is left alone.
  if try('EXISTS', key) == 0 then
    try('SET', key, '0', 'NX', 'PX', 1)
    try('GET', key)
    try('GETRANGE', key, 0, 0)
    try('SETRANGE', key, 0, '0')
    try('TYPE', key)
    try('PTTL', key)
    try('PEXPIRE', key, 1)
    try('DEL', key)
    try('ZADD', key, 'XX', 0, '0')
    try('ZREM', key, '0')
    try('ZRANGE', key, 0, 0)
    try('ZRANK', key, '0')
    try('ZCARD', key)
    try('ZSCORE', key, '0')
    try('HGET', key, '0')
    try('HMGET', key, '0')
    try('HGETALL', key)
    try('HDEL', key, '0')
    if #refused == 0 then
      try('HSET', key, '0', '0')
      try('DEL', key)
    end
  end
end
local history = KEYS[3]
if history and try('EXISTS', history) == 0 then
  local can_undo = #refused == 0
  try('XREVRANGE', history, '+', '-', 'COUNT', 1)
  if can_undo then
    try('XADD', history, 'MAXLEN', '~', 1, '*', 'entry', '')
    try('DEL', history)
  end
end
try('TIME')
try(ARGV[1], ARGV[2], '')
return refused
