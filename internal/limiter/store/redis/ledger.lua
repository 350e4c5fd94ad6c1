-- Carries out a call to a ledger: package ledger (Entry.Claim and Entry.SetLimit) says what it means, and both must do the
-- same. Numbers are doubles that hold integers below 2^53.
--
-- KEYS[1]  the entry
-- ARGV     "claim" and a ledger.Claim in JSON, or "limit", units, from
-- Reply    of a claim: a ledger.Lease in JSON
--          of a limit: "ok", or "soon" and the earliest possible window, or "planned" and the window of the first
--          planned change
--
-- The entry is "SLL5" and 35 doubles: first, four changes of units and from, pause, stated, and four records of window,
-- limit, leased, need, surprise, contend. Stated limits are multiples of 2^20 from 2^40 on, so they are exact, too.
local WINDOWS, FIELDS, CHANGES, LAYOUT, NUMBERS = 4, 6, 4, "SLL5", 35
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
local FIRST, CHANGED, PAUSE, STATED = 1, 2, 10, 11
local LIMIT, LEASED, NEED, SURPRISE, CONTEND = 1, 2, 3, 4, 5 -- of a record, after its window

-- at is the place of the record that a window has, or would have.
local function at(window) return 12 + (window % WINDOWS) * FIELDS end

local function look(window, field)
  local r = at(window)
  if e[r] == window then return e[r + field] end
  return 0
end

-- change_of returns units and from of the change that holds in a window, or 0 and 0.
local function change_of(window)
  local units, from = 0, 0
  for i = CHANGED, CHANGED + 2 * (CHANGES - 1), 2 do
    if e[i] > 0 and e[i + 1] <= window then units, from = e[i], e[i + 1] end
  end
  return units, from
end

local function limit_of(window, units)
  local known = look(window, LIMIT)
  if known ~= 0 then return known end
  local changed = change_of(window)
  if changed > 0 then return changed end
  return units
end

local function latest_window()
  local latest = -MOST - 1
  for i = 0, WINDOWS - 1 do
    local r = at(i)
    if e[r + LIMIT] ~= 0 then latest = math.max(latest, e[r]) end
  end
  return latest
end

-- add appends a change to a list. Of changes that hold by the window, only the latest stays.
local function add(list, units, from, window)
  if #list == 1 and from <= window then list[1] = nil end
  if #list < CHANGES then list[#list + 1] = {units, from} end
end

local function set_changes(list)
  for i = 1, CHANGES do
    local change = list[i] or {0, 0}
    e[CHANGED + 2 * i - 2], e[CHANGED + 2 * i - 1] = change[1], change[2]
  end
end

local function save()
  local value = LAYOUT .. struct.pack(FORMAT, unpack(e))
  if e[CHANGED] > 0 then
    redis.call("SET", KEYS[1], value) -- a limit that was set is not forgotten
  else
    redis.call("SET", KEYS[1], value, "EX", 86400)
  end
end

if ARGV[1] == "limit" then
  local units, from = tonumber(ARGV[2]), tonumber(ARGV[3])
  local latest = latest_window()
  if from <= latest then return string.format("soon %.0f", latest + 1) end
  local list, planned = {}, 0
  for i = CHANGED, CHANGED + 2 * (CHANGES - 1), 2 do
    if e[i] == 0 or e[i + 1] >= from then break end
    add(list, e[i], e[i + 1], latest)
    if e[i + 1] > latest then planned = planned + 1 end
  end
  if planned == CHANGES - 1 then return string.format("planned %.0f", list[#list - planned + 1][2]) end
  add(list, units, from, latest)
  set_changes(list)
  e[STATED] = 0
  save()
  return "ok"
end

local c = cjson.decode(ARGV[2])
local window, stage, need, told, held, want, back, unit, owed =
  c.Window, c.Stage, c.Need, c.Told, c.Held, c.Want, c.Return, c.Unit, c.Owed
local PREFETCH, SHARE, LEFTOVER = 0, 1, 2
local OWED_ONE = 1024

-- restore takes over what the instance knows.
local function restore()
  local units, from, stated = c.Known.Changed.Units, c.Known.Changed.From, c.Known.Stated
  if units > 0 then
    local list, added = {}, false
    for i = CHANGED, CHANGED + 2 * (CHANGES - 1), 2 do
      if e[i] == 0 then break end
      if not added and from <= e[i + 1] then
        added = true
        if from < e[i + 1] then add(list, units, from, window) end
      end
      add(list, e[i], e[i + 1], window)
    end
    if not added then add(list, units, from, window) end
    set_changes(list)
  end
  if stated > 0 and (e[STATED] == 0 or stated < e[STATED]) then e[STATED] = stated end
end

-- units_of returns the units of a window that a stated limit allows.
local function units_of(stated)
  local one = 2^20
  local place, fraction = window % one, stated % one
  return math.floor(stated / one) + math.floor((place + 1) * fraction / one) - math.floor(place * fraction / one)
end

local function part(units, need, sum)
  if sum <= units then return need end
  local exact = units * need / sum
  local more = math.min(math.max(owed / OWED_ONE, -exact / 8), exact / 8 + unit)
  local round_up = 0.75
  if stage > PREFETCH then round_up = 0.5 end
  return math.floor((exact + more) / unit + 1 - round_up) * unit
end

local units, left, total, equal = 0, 0, 0, 0
local r = at(window)
local remembered = not (e[r + LIMIT] ~= 0 and e[r] > window)
if remembered then
  if e[FIRST] == 0 then
    e[FIRST] = window + 2
    if stage > PREFETCH then e[FIRST] = e[FIRST] + 1 end
  end
  if window < e[FIRST] then restore() end
end
local limit, next_limit = limit_of(window, c.Limit), limit_of(window + 1, c.Limit)
if remembered then
  if e[r + LIMIT] == 0 or e[r] ~= window then
    e[r], e[r + LIMIT], e[r + LEASED], e[r + NEED], e[r + SURPRISE], e[r + CONTEND] = window, limit, 0, 0, 0, 0
  end
  e[PAUSE] = math.max(e[PAUSE], c.Pause)
  if c.Stated > 0 then e[STATED] = c.Stated end
  local most = limit
  if e[STATED] > 0 then most = math.min(most, units_of(e[STATED])) end
  e[r + LEASED] = math.max(e[r + LEASED] - back, 0)
  e[r + NEED] = math.min(e[r + NEED] + need, MOST)
  if stage > PREFETCH then
    e[r + SURPRISE] = math.min(e[r + SURPRISE] + need, MOST)
  elseif c.Contends then
    e[r + CONTEND] = math.min(e[r + CONTEND] + 1, MOST)
  end
  total = e[r + NEED]
  if window >= e[FIRST] then
    local free = math.max(most - e[r + LEASED], 0)
    local surprise = math.max(look(window - 1, SURPRISE), look(window - 2, SURPRISE))
    local reserve = math.max(math.min(surprise + math.floor(surprise / 2), math.floor(most / 4)), math.floor(most / 50))
    local needed = math.min(told + need, limit)
    local own = math.max(unit - e[r + LEASED], 0)
    local allowed = free
    if most > 0 and unit > most and unit <= limit and want >= own and e[r + LEASED] <= held - back then
      allowed = own
    elseif stage == PREFETCH then
      local sum = math.max(look(window - 1, NEED), total)
      allowed = math.min(part(most - reserve, needed, sum), math.max(free - reserve, 0))
    elseif stage == SHARE then
      allowed = math.min(math.max(part(most, needed, total) - held + back, 0), free)
    elseif stage == LEFTOVER then
      allowed = math.floor((free + 3) / 4)
    end
    units = math.min(want, allowed)
    e[r + LEASED] = e[r + LEASED] + units
    left = math.max(most - e[r + LEASED], 0)
  end
  local contenders = look(window - 2, CONTEND)
  if stage == PREFETCH and contenders > 0 and math.max(look(window - 1, NEED), total) > most then
    equal = math.floor(look(window - 2, LEASED) * OWED_ONE / contenders)
  end
  save()
end
local changed, changed_from = change_of(latest_window() + 1)
return string.format('{"Units":%.0f,"Limit":%.0f,"NextLimit":%.0f,"Left":%.0f,"Need":%.0f,"Equal":%.0f,' ..
  '"Changed":{"Units":%.0f,"From":%.0f},"Pause":%.0f,"Stated":%.0f}',
  units, limit, next_limit, left, total, equal, changed, changed_from, e[PAUSE], e[STATED])
