-- What one call spends on dead waiters. KEYS, ARGV, reply: none.
-- How many places it looks at, how many channels without a listener it finds; each walk and each request may do the least, also
-- when those before it have used up the most. And how many waiters a request lets in. Where a bound ends it, the outcome is 'more',
-- which is not 'nobody'.
local MOST_SEEN, MOST_UNHEARD, MOST_LET_IN = 1024, 128, 32
local LEAST_SEEN, LEAST_UNHEARD = 16, 8
-- Channels without a listener, their number, and the places looked at so far.
local deaf, unheard, looked_at = {}, 0, 0
