-- Carries out a call to a ledger: package ledger (Entry.Claim and Entry.SetLimit) says what it means, and both must do the
-- same. Numbers are doubles that hold integers below 2^53.
--
-- KEYS[1]  the entry
-- ARGV     "claim", window, limit, stage, need, told, held, want, return, unit, round
--          or "limit", units, from
-- Reply    of a claim: units, limit, next limit, left, need, with spaces between them
--          of a limit: "ok", or "soon" and the earliest possible window
--
-- The entry is "SLL1" and 24 doubles: first, units, next, from, and four records of window, limit, leased, need, surprise.
local WINDOWS, LAYOUT, NUMBERS = 4, "SLL1", 24
local FORMAT = "<" .. string.rep("d", NUMBERS)
local MOST = 2^52

local packed = redis.call("GET", KEYS[1])
local e
if not packed then
  e = {}
  for i = 1, NUMBERS do e[i] = 0 end
elseif string.sub(packed, 1, 4) ~= LAYOUT or #packed ~= 4 + 8 * NUMBERS then
  return redis.error_reply("SLUICE unreadable: " .. KEYS[1] .. " is no ledger of layout " .. LAYOUT)
else
  e = {struct.unpack(FORMAT, string.sub(packed, 5))}
end
local FIRST, UNITS, NEXT, FROM = 1, 2, 3, 4
local LIMIT, LEASED, NEED, SURPRISE = 1, 2, 3, 4 -- of a record, after its window

-- at is the place of the record that a window has, or would have.
local function at(window) return 5 + (window % WINDOWS) * 5 end

local function look(window, field)
  local r = at(window)
  if e[r] == window then return e[r + field] end
  return 0
end

local function limit_of(window, units)
  local known = look(window, LIMIT)
  if known ~= 0 then return known end
  if e[UNITS] > 0 then units = e[UNITS] end
  if e[NEXT] > 0 and window >= e[FROM] then units = e[NEXT] end
  return units
end

local function save()
  local value = LAYOUT .. struct.pack(FORMAT, unpack(e))
  if e[UNITS] > 0 or e[NEXT] > 0 then
    redis.call("SET", KEYS[1], value) -- a limit that was set is not forgotten
  else
    redis.call("SET", KEYS[1], value, "EX", 86400)
  end
end

if ARGV[1] == "limit" then
  local units, from = tonumber(ARGV[2]), tonumber(ARGV[3])
  local latest = -MOST - 1
  for i = 0, WINDOWS - 1 do
    local r = 5 + i * 5
    if e[r + LIMIT] ~= 0 then latest = math.max(latest, e[r]) end
  end
  if from <= latest then return string.format("soon %.0f", latest + 1) end
  if e[NEXT] > 0 and e[FROM] <= latest then e[UNITS] = e[NEXT] end
  e[NEXT], e[FROM] = units, from
  save()
  return "ok"
end

local window, given, stage, need, told, held, want, back, unit, round =
  tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]),
  tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local PREFETCH, SHARE, LEFTOVER = 0, 1, 2

local function part(units, need, sum)
  if sum <= units then return need end
  local exact = units * need / sum / unit
  local whole = math.floor(exact)
  if (exact - whole) * 1024 > round then whole = whole + 1 end
  return whole * unit
end

local limit, next_limit = limit_of(window, given), limit_of(window + 1, given)
local units, left, total = 0, 0, 0
local r = at(window)
if not (e[r + LIMIT] ~= 0 and e[r] > window) then
  if e[r + LIMIT] == 0 or e[r] ~= window then
    e[r], e[r + LIMIT], e[r + LEASED], e[r + NEED], e[r + SURPRISE] = window, limit, 0, 0, 0
  end
  if e[FIRST] == 0 then
    e[FIRST] = window + 2
    if stage > PREFETCH then e[FIRST] = e[FIRST] + 1 end
  end
  e[r + LEASED] = math.max(e[r + LEASED] - back, 0)
  e[r + NEED] = math.min(e[r + NEED] + need, MOST)
  if stage > PREFETCH then e[r + SURPRISE] = math.min(e[r + SURPRISE] + need, MOST) end
  total = e[r + NEED]
  if window >= e[FIRST] then
    local free = math.max(limit - e[r + LEASED], 0)
    local surprise = math.max(look(window - 1, SURPRISE), look(window - 2, SURPRISE))
    local reserve = math.max(math.min(surprise + math.floor(surprise / 2), math.floor(limit / 4)), math.floor(limit / 50))
    local needed = math.min(told + need, limit)
    local allowed = free
    if stage == PREFETCH then
      local sum = math.max(look(window - 1, NEED), total)
      allowed = math.min(part(limit - reserve, needed, sum), math.max(free - reserve, 0))
    elseif stage == SHARE then
      allowed = math.min(math.max(part(limit, needed, total) - held + back, 0), free)
    elseif stage == LEFTOVER then
      allowed = math.floor((free + 3) / 4)
    end
    units = math.min(want, allowed)
    e[r + LEASED] = e[r + LEASED] + units
    left = math.max(limit - e[r + LEASED], 0)
  end
  save()
end
return string.format("%.0f %.0f %.0f %.0f %.0f", units, limit, next_limit, left, total)
