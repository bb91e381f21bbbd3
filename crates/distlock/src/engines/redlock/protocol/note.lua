-- Begins the scripts that read a node's note. KEYS and ARGV: what each says; reply: none.
-- The note is `run_id born_us leapt_us until_us horizon_us longest_us`: the server's life, since when it knows its ballots, when a
-- leap of its clock was last dealt with, until when it does not vote, when its last lease ends, and how long leases are at the
-- most. Nothing that is not over now lasts longer than that: where the clock went back, it is made shorter, and the last answer
-- is true.
local function read_note(text, now)
  local id, born, leapt, until_us, horizon, longest =
    string.match(text or '', '^(%x+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  if id then
    local most = now + longest
    local is_shorter = tonumber(until_us) > most
    until_us, horizon = math.min(until_us, most), math.min(horizon, most)
    return id, tonumber(born), tonumber(leapt), until_us, horizon, tonumber(longest), is_shorter
  end
end
