-- What one of several requests failed by, as its answer: those before it in the same call are done. KEYS, ARGV, reply: none.
local function failure(problem)
  local text = type(problem) == 'table' and problem.err or problem
  -- An error has a code; what goes wrong in the script itself has none.
  return { err = string.match(text, '^%u+ ') and text or 'ERR ' .. text }
end
