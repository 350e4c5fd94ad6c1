-- settle.lua makes one settlement: it gives back what of a receipt's entries was not used, and charges what was used
-- beyond them, or it does nothing. It gives back the same as limit.ReceiptEntry.GiveBack, to the unit: it uses integers
-- of at most 2^53 only, and never rounds. The package comment of package redis describes the layout of packs.
-- shared.lua goes before this file, and decide.lua too if anything is charged.
--
-- KEYS[1] is the key that remembers the receipt; then come packs and sorted sets, and then the keys of the decision
-- that charges. ARGV[1] holds doubles: the time (below zero: use the server's clock), the time from which the receipt
-- settles nothing, the number of entries, 14 numbers for each entry, and the number of keys before those of the
-- decision. The 14 numbers are the numbers of the keys of the entry's pack and of its sorted set (0: none), the units
-- to give back, the time from which the entry gives nothing back, the time of the charge, the rate by which the state
-- was counted, and the eight numbers of algorithm.refundNumbers. ARGV[2] holds the heads of the entries' tiers (17
-- bytes each), and ARGV[3] the text of the decision for decide, or nothing.
--
-- settle.go writes the arguments and reads the reply, all doubles: the time, the result (0: made, 1: made before, 2:
-- too late) and, if the settlement was made, the units that each entry gave back, and then the reply of decide.
--
-- The heads of the marks of a token_bucket begin with 133 (what was refunded), 197 (what is leased) or 229 (what may
-- come back late).
local sunpack, pack, sub, byte, concat = struct.unpack, struct.pack, string.sub, string.byte, table.concat
local call, KEYS = redis.call, KEYS
local ERA, MOST = 4503599627370496, 9007199254740992
local MADE, REPEATED, LATE = 0, 1, 2
local common = shared()

local now, till, count = sunpack('<ddd', ARGV[1])
if now < 0 then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
if now >= till then return pack('<dd', now, LATE) end
if call('EXISTS', KEYS[1]) == 1 then return pack('<dd', now, REPEATED) end

-- number returns a double of a pack, and fails unless it is an exact integer.
local function number(v)
  assert(v == math.floor(v) and v >= -MOST and v <= MOST)
  return v
end

-- index returns a table of the positions of the states of a pack, by their heads; and the time until which the pack's
-- expiry is set.
local function index(value)
  local total = sunpack('<H', value, 5)
  local where, states, records = {}, 15 + 17 * total, 15 + 41 * total
  assert(records <= #value + 1 and (#value + 1 - records) % 49 == 0)
  for j = 0, total - 1 do where[sub(value, 7 + 17 * j, 23 + 17 * j)] = states + 24 * j end
  for at = records, #value, 49 do
    local id = sub(value, at, at + 16)
    assert(not where[id])
    where[id] = at + 25
  end
  return where, number(sunpack('<d', value, states - 8))
end

-- packs holds the packs of the receipt, by the number of their key; false for a pack that does not exist. bad is the
-- reply if a pack cannot be read.
local packs, bad = {}, nil

-- unreadable sets bad to the error for a key that cannot be read.
local function unreadable(key, why) bad = common.unreadable(key, why) end

local function open(k)
  if packs[k] ~= nil then return packs[k] end
  local value = redis.pcall('GET', KEYS[k])
  if type(value) == 'table' then return unreadable(KEYS[k], 'is not a string') end
  if not value then
    packs[k] = false
    return false
  end
  local version = sub(value, 1, 4)
  if version ~= 'SLU7' then
    bad = common.foreign(KEYS[k], version)
    return nil
  end
  local fine, where, armed = pcall(index, value)
  if not fine then return unreadable(KEYS[k], 'is not a pack that can be read') end
  packs[k] = {value = value, before = value, where = where, armed = armed}
  return packs[k]
end

-- get returns n numbers of a pack, from position at; put overwrites numbers of a pack.
local function get(p, at, n)
  local v = {sunpack('<' .. string.rep('d', n), p.value, at)}
  for i = 1, n do number(v[i]) end
  return v[1], v[2], v[3]
end

local function put(p, at, ...)
  local text = pack('<' .. string.rep('d', select('#', ...)), ...)
  p.value, p.dirty = sub(p.value, 1, at - 1) .. text .. sub(p.value, at + #text), true
end

-- refilled returns a bucket's level at the time `to`, given its level at the time `at`. A product that is too large to
-- be exact is above full, and is cut to full.
local function refilled(full, num, at, level, to)
  if to > at then at, level = to, level + (to - at) * num end
  return at, level < full and level or full
end

-- bucket refunds the entry of a token_bucket, as package limit does, and returns the units.
local function bucket(p, record, digest, units, stamp, num, den, full, full_in, headroom, sum_before, eras_before)
  local at, missing = get(p, record, 2)
  local level = full - missing
  local mark, held, ends = p.where['\197' .. digest], 0, 0
  if mark then ends, held = get(p, mark, 2) end
  held = common.leased_grains(held, den, missing)
  local to, leased = now > at and now or at, 0
  if held > 0 then
    if to < ends then
      leased = held
      at, level = refilled(full - leased, num, at, level, to)
    elseif at < ends then
      at, level = refilled(full - held, num, at, level, ends)
    end
  end
  if leased == 0 then at, level = refilled(full, num, at, level, to) end
  local sum, eras, refunds = 0, 0, p.where['\133' .. digest]
  if refunds then sum, eras = get(p, refunds, 2) end
  local elapsed, others = at - stamp, MOST -- others: what was refunded of other charges since
  if eras - eras_before < 2 then others = (eras - eras_before) * ERA + (sum - sum_before) end
  if elapsed < 0 or others < 0 then return 0 end -- the clock leapt back, or the counter is a new one
  local gained = full
  if elapsed < full_in and others < full then gained = elapsed * num + others end
  local give = units * den - (gained > headroom and gained - headroom or 0)
  if give > full - leased - level then give = full - leased - level end
  if give <= 0 then return 0 end
  put(p, record, at, full - level - give)
  sum = sum + give
  if sum >= ERA then sum, eras = sum - ERA, (eras + 1) % 256 end
  if refunds then
    put(p, refunds, sum, eras)
  else
    local id = '\133' .. digest
    p.where[id] = #p.value + 26
    p.value = p.value .. id .. pack('<dddd', p.armed, sum, eras, 0) -- no record matters for longer
  end
  return (give - math.fmod(give, den)) / den
end

-- release refunds units that were spent from a lease of a token_bucket, and returns how many.
local function release(p, record, digest, units, slot, den)
  local at, missing = get(p, record, 2)
  local mark, held, ends = p.where['\197' .. digest], 0, 0
  if mark then ends, held = get(p, mark, 2) end
  if ends ~= slot or (now > at and now or at) >= ends then return 0 end
  if units > held then units = held end
  if units <= 0 then return 0 end
  put(p, record, at, missing - units * den)
  put(p, mark, ends, held - units)
  return units
end

local given, alters = {}, {}
for i = 1, count do
  local k, set, units, ends, stamp, rate, a1, a2, a3, a4, a5, a6, a7, a8 =
    sunpack('<dddddddddddddd', ARGV[1], 112 * i - 87)
  local id, back = sub(ARGV[2], 17 * i - 16, 17 * i), 0
  local alg, digest = byte(id), sub(id, 2)
  local p = units > 0 and now < ends and open(k)
  local record = p and p.where[id]
  local fine = true
  if record then
    -- A branch sets back to the units that it gives back, and changes the numbers of the record by put.
    fine = pcall(function()
      if alg == 5 or alg == 6 then
        local at, n, stored_rate = get(p, record, 3)
        if at == 0 or stored_rate ~= rate then return end -- the counter was never used, or its rate has changed
        if alg == 6 then -- leaky_bucket: den, charged, slot, fraction. The slot that the charge set moves back.
          if at == a3 and n == a4 then
            local spent = (a2 - units) * a1
            local r = math.fmod(spent, rate)
            put(p, record, stamp + (spent - r) / rate, r)
            back = units
          end
        elseif a8 ~= 0 then
          back = release(p, record, digest, units, a8, a2)
        else
          back = bucket(p, record, digest, units, stamp, a1, a2, a3, a4, a5, a6, a7)
        end
      elseif alg == 3 or alg == 4 then -- sliding_buckets, sliding_log: the entry is in the set, and the sum in the pack
        local _, sum = get(p, record, 2)
        if not common.is_set(KEYS[set]) then return unreadable(KEYS[set], 'is not a sorted set') end
        local text, there = string.format('%.0f', stamp), 0
        for _, e in ipairs(call('ZRANGEBYSCORE', KEYS[set], text, text)) do there = there + common.units_of(e) end
        back = there < units and there or units
        if back > 0 then
          put(p, record + 8, sum - back)
          alters[#alters + 1] = {KEYS[set], stamp, -back}
        end
      elseif alg < 3 or alg == 7 then
        -- fixed_window, sliding_window, quota: the count of the window, or a sliding_window's previous count
        local at, at_count = get(p, record, 1), nil
        if at == stamp then
          at_count = record + 8
        elseif alg == 2 and at == stamp + a1 then
          at_count = record + 16
        end
        if at_count then
          local n = get(p, at_count, 1)
          back = n < units and (n > 0 and n or 0) or units
          if back > 0 then put(p, at_count, n - back) end
        end
      else
        bad = redis.error_reply('SLUICE settle.lua has no branch for algorithm ' .. alg)
      end
    end)
  end
  if not fine then unreadable(KEYS[k], 'is not a pack that can be read') end
  if bad then return bad end
  given[i] = pack('<d', back)
end

-- The charge comes after the refund, as in package limit, and takes the refund back if it fails. A pack keeps its
-- expiry: the charge of the receipt has set it to a time after which the receipt gives nothing back.
for _, change in ipairs(alters) do common.alter(unpack(change)) end
for k, p in pairs(packs) do
  if p and p.dirty then call('SET', KEYS[k], p.value, 'KEEPTTL') end
end
local charged = ''
if ARGV[3] ~= '' then
  charged = decide(ARGV[3], (sunpack('<d', ARGV[1], 25 + 112 * count)))
  if type(charged) == 'table' then
    for _, change in ipairs(alters) do common.alter(change[1], change[2], -change[3]) end
    for k, p in pairs(packs) do
      if p and p.dirty then call('SET', KEYS[k], p.before, 'KEEPTTL') end
    end
    return charged
  end
end
call('SET', KEYS[1], '1', 'PX', math.ceil((till - now) / 1000) + 1)
return pack('<dd', now, MADE) .. concat(given) .. charged
