-- The server's clock. KEYS, ARGV, reply: none.
-- A call of a command from a script costs more than most commands, and a number turned into text or back nearly as much:
-- the common paths do as little of both as they can, and give commands their numbers as text.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local now_digits = clock[1] .. string.rep('0', 6 - #clock[2]) .. clock[2]
