-- Reads of keys that may be of another type. KEYS, ARGV, reply: none.

-- Returns the reply; one of type `table` says that the key is of another type. Every other refusal is raised: a right that is
-- missing says nothing about whose a lock is. It is raised by asking again, so that it reads as the server words it.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err and not string.find(reply.err, 'WRONGTYPE', 1, true) then
    return redis.call(...)
  end
  return reply
end
