-- One decision over all limits of an owner: all of them are charged, or none. See package redis for the layout, and
-- package limit for the algorithms, which are the same here to the unit: integers below 2^53 only, no rounding.
-- ARGV[1] holds doubles, ARGV[2] the format of as many of them as are unpacked at once, ARGV[3] the tiers' ids; wire.go
-- writes them and reads the reply, which is the states before the charge: the core evaluates them once more.
-- This script knows every case. The usual ones have a script each that is about three times as fast: see shape.go.
local sunpack, pack, sub, byte, fmod, call = struct.unpack, struct.pack, string.sub, string.byte, math.fmod, redis.call
local SKEW = 5000000
local MOST = 16384 -- records that a pack keeps of tiers that the request does not name: see package redis
local A, piece = {sunpack(ARGV[2], ARGV[1])}, #ARGV[2] - 1
for p = 8 * piece, #ARGV[1] - 1, 8 * piece do
  local more = {sunpack(ARGV[2], ARGV[1], p + 1)}
  for j = 1, piece do A[p / 8 + j] = more[j] end
end
local ids = ARGV[3]
local now, charge, npacks = A[1], A[2], A[3]
local ahead, STEP = charge >= 2, 10 -- leases are asked for, with ten more numbers for each tier
if ahead then charge, STEP = charge - 2, 20 end
if now < 0 then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- Doubles of each algorithm's state, of what a bucket was refunded, of what of it is leased, and of what may come back
-- late.
local WIDTH = {3, 3, 2, 2, 2, 2, 3, [133] = 2, [197] = 2, [229] = 2}
local states, fresh, packs = {}, {}, {}
local na, nb, nc, nfresh, stamped = {}, {}, {}, {}, nil
local nheld, nlate, ngiven = {}, {}, {} -- of a bucket after the charge: what is leased, what may come back late, what did
local admitted, refused, repaired, crowded = true, nil, nil, nil
local tier, P, before, summary = 0, 3 + 6 * npacks, {''}, {}
local none = {0, 0}
local joined, shared = {}, {} -- values that this request adds to each set, and counters of all others that it uses

-- What cannot be read is an error, but for a minute only: it is in our place, and must not shut a tenant out for good.
local function unreadable(key, why)
  call('PEXPIRE', key, 60000, 'LT')
  return redis.error_reply('SLUICE unreadable: ' .. key .. ' ' .. why .. '; it is dropped in a minute')
end

-- A pack of another version may hold what was consumed. It is left as it is: an operator decides about it.
local function foreign(key, value)
  return redis.error_reply('SLUICE unreadable: ' .. key .. ' holds a pack of version ' ..
    string.format('%q', sub(value, 1, 4)) .. ', which this release of Sluice does not read, and so does not take for ' ..
    'empty; wait until the key expires, or delete it')
end

-- exact tells whether a number can be counted with.
local function exact(v) return v == math.floor(v) and v >= -9007199254740992 and v <= 9007199254740992 end

-- number is a double of a pack, which must be an integer.
local function number(v)
  assert(exact(v))
  return v
end

-- marked reads the two numbers of a record that goes with a bucket, if there is one.
local function marked(value, p)
  if not p then return nil end
  local a, u = sunpack('<dd', value, p)
  return {number(a), number(u)}
end

-- load reads what a pack says of the n tiers in mine: their states, and what was refunded to, leased of and may come
-- back late to buckets. It returns the time that the pack's expiry is armed until, the records of all other tiers for
-- the next pack, how many those are, and which of mine have no record. Records that make no difference any more are
-- left out.
local function load(value, mine, n, st, refunds, helds, lates)
  local magic, total = sunpack('<c4H', value)
  local q = 7 + 25 * total
  local armed = sunpack('<d', value, q)
  local want, where, rates, fronts = {}, {}, {}, {}
  local kept, behind, stamp, run = 0, {}, pack('<d', number(armed)), nil
  for j = 1, n do want[sub(mine, 25 * j - 24, 25 * j - 8)] = true end
  q = q + 8
  for j = 0, total - 1 do
    local id = sub(value, 7 + 25 * j, 23 + 25 * j)
    local alg = byte(id)
    local after = q + 8 * WIDTH[alg]
    assert(alg < 8)
    if want[id] then
      assert(not where[id])
      where[id], rates[id] = q, 24 + 25 * j
    else -- it leaves the front; until the pack would have expired it may matter
      kept = kept + 1
      behind[kept] = sub(value, 7 + 25 * j, 31 + 25 * j) .. stamp .. sub(value, q, after - 1)
    end
    if alg == 5 then fronts[id] = true end
    q = after
  end
  while q <= #value do
    local id = sub(value, q, q + 16)
    local alg = byte(id)
    local after = q + 33 + 8 * WIDTH[alg]
    local bucket = alg > 128 and '\5' .. sub(id, 2) or id
    local raw = false -- kept as it is
    if alg > 192 and magic == 'SLU3' then assert(not fronts[bucket]) end -- the scripts of shapes would not heed it
    if want[bucket] then
      assert(not where[id])
      where[id], rates[id] = q + 33, q + 17
    elseif fronts[bucket] then -- its bucket leaves the front
      kept = kept + 1
      behind[#behind + 1] = sub(value, q, q + 24) .. stamp .. sub(value, q + 33, after - 1)
    else
      raw = not (sunpack('<d', value, q + 25) <= now)
      if raw then kept = kept + 1 end
    end
    if raw then
      run = run or q
    elseif run then
      behind[#behind + 1], run = sub(value, run, q - 1), nil
    end
    q = after
  end
  assert(q == #value + 1)
  if run then behind[#behind + 1] = sub(value, run) end
  local missing
  for j = 1, n do
    local id = sub(mine, 25 * j - 24, 25 * j - 8)
    local p, alg, a, u, m = where[id], byte(id), 0, 0, 0
    if p then
      a, u = sunpack('<dd', value, p)
      if WIDTH[alg] == 3 then
        m = sunpack('<d', value, p + 16)
      elseif alg < 5 then
        a, m = 0, a
      elseif a ~= 0 then
        m = sunpack('<d', value, rates[id])
      end
      assert(alg == 5 or (u >= 0 and m >= 0)) -- only a bucket may owe
      st[3 * j - 2], st[3 * j - 1], st[3 * j] = number(a), number(u), number(m)
    else
      missing = missing or {}
      missing[j] = true
    end
    if alg == 5 then
      local rest = sub(id, 2)
      refunds[j] = marked(value, where['\133' .. rest])
      local held, late = marked(value, where['\197' .. rest]), marked(value, where['\229' .. rest])
      assert(not held or (held[2] >= 0 and held[2] <= 1099511627776))
      assert(not late or late[2] >= 0)
      if held and held[2] > 0 then helds[j] = held end
      if late and late[2] > 0 then lates[j] = late end
    end
  end
  return armed, table.concat(behind), kept, missing
end

-- units is what an entry of a sorted set counts. One that is not ours counts nothing.
local function units_of(e) return tonumber(string.match(e, '^%d+:(%d+)$')) or 0 end

-- alter makes the entry of a time count so much more, or less. It adds before it removes: a set that is empty in
-- between loses its expiry.
local function alter(key, time, units)
  local text = string.format('%.0f', time)
  local old = call('ZRANGEBYSCORE', key, text, text)
  for _, e in ipairs(old) do units = units + units_of(e) end
  local new = string.format('%s:%.0f', text, units)
  if units > 0 then call('ZADD', key, text, new) end
  for _, e in ipairs(old) do
    if e ~= new then call('ZREM', key, e) end
  end
end

-- offer is how much of what is left is leased, of a tier whose numbers begin behind p.
local function offer(p, left)
  if left <= 0 then return 0 end
  local least, most, part = A[p + 11], A[p + 12], left * A[p + 15]
  if left >= A[p + 14] then most = A[p + 13] end
  part = (part - fmod(part, 1024)) / 1024
  if most > part then most = part end
  if most < least then most = least end
  return most < left and most or left
end

-- leases tells whether the tier's numbers ask for one.
local function leases(p) return ahead and (A[p + 11] > 0 or A[p + 12] > 0 or A[p + 13] > 0) end

-- between is v, or the bound that it passes.
local function between(low, v, high) return v < low and low or (v > high and high or v) end

-- start_of is when the window of a time begins.
local function start_of(time, period, offset)
  local r = fmod(time - offset, period)
  if r < 0 then r = r + period end
  return time - r
end

-- weighted is what the last window weighs at a time.
local function weighted(prev, start, time, period, tick, ticks)
  local left = between(0, start + period - time, period)
  local r = fmod(left, tick)
  local w = prev * between(0, (left - r) / tick + (r > 0 and 1 or 0), ticks)
  r = fmod(w, ticks)
  return (w - r) / ticks + (r > 0 and 1 or 0)
end

-- is_set tells whether the key can be used as a sorted set.
local function is_set(key)
  local t = call('TYPE', key).ok
  return t == 'zset' or t == 'none'
end

for i = 1, npacks do
  local base = 6 * i - 3
  local key, n, redirected = KEYS[A[base + 1]], A[base + 2], false
  local value = redis.pcall('GET', key)
  if A[base + 3] == 1 and not value then
    local set = KEYS[A[base + 5]]
    if not is_set(set) then return unreadable(set, 'is not a sorted set') end
    joined[set] = joined[set] or call('ZCOUNT', set, now, '+inf')
    if joined[set] < A[base + 6] then
      joined[set] = joined[set] + 1
    else
      key, redirected = KEYS[A[base + 4]], true
      if shared[key] then return redis.error_reply('SLUICE two values share a counter: ' .. key) end
      shared[key] = true
      value = redis.pcall('GET', key)
    end
  end
  if type(value) == 'table' then return unreadable(key, 'is not a string') end
  before[1] = before[1] .. pack('<d', redirected and 1 or 0)
  local mine, armed, behind, kept, missing = sub(ids, 25 * tier + 1, 25 * (tier + n)), 0, '', 0, nil
  local st, refunds, helds, lates = {}, {}, {}, {}
  for j = 1, 3 * n do st[j] = 0 end
  if value then
    local magic, fine = sub(value, 1, 4), nil
    if magic ~= 'SLU3' and magic ~= 'SLU4' then
      if sub(magic, 1, 3) == 'SLU' then return foreign(key, value) end
      return unreadable(key, 'is not a pack')
    end
    fine, armed, behind, kept, missing = pcall(load, value, mine, n, st, refunds, helds, lates)
    if not fine then return unreadable(key, 'is not a pack that can be read') end
    if kept > MOST then crowded = key end
  end
  -- Earlier versions kept the counters of a limit that only some requests count in a pack of its own. Its key is
  -- KEYS[A[base + 6]], and so on for each limit. The first use of a limit looks whether there is one.
  if A[base + 3] == 0 and (missing or not value) then
    local own, group, looked = A[base + 6] - 1, nil, nil
    for j = 1, n do
      local of = A[P + (j - 1) * STEP + 3]
      if of ~= group then group, own = of, own + 1 end
      if looked ~= own and (not missing or missing[j]) then
        looked = own
        local old = redis.pcall('GET', KEYS[own])
        if type(old) == 'table' then return unreadable(KEYS[own], 'is not a string') end
        if old and sub(old, 1, 3) == 'SLU' then return foreign(KEYS[own], old) end
        if old then return unreadable(KEYS[own], 'is not a pack') end
      end
    end
  end

  local dirty = false
  for j = 1, n do
    tier = tier + 1
    local alg, flags = A[P + 1], A[P + 2]
    local x, y, z = 3 * j - 2, 3 * j - 1, 3 * j
    local at, units, m = st[x], st[y], st[z]
    local admits = false
    local adjust = ahead and A[P + 18] or 0
    if alg == 5 then -- token_bucket: need, num, den, full, slot, rate, period; ahead: where slots begin
      local num, den, full = A[P + 5], A[P + 6], A[P + 7]
      local slot, held, ends = A[P + 8], 0, 0
      local late, ended, given = lates[j] and lates[j][2] or 0, lates[j] and lates[j][1] or 0, 0
      if helds[j] then
        ends, held = helds[j][1], helds[j][2]
        if at > now + SKEW or ends > now + 2000000 + SKEW then
          ends = ends > now + slot and now + slot or ends
          helds[j], lates[j], late, dirty = {ends, held}, nil, 0, true
          if at > now then at, st[x] = now, now end
        end
      end
      local same = m == A[P + 9]
      if m == 0 then
        at, units = now, full
      else
        if at > now + SKEW then
          at, st[x], lates[j], late, dirty = now, now, nil, 0, true
        end
        if not same then
          -- The level in 1/den units, rounded down, by long division: the product passes 2^53.
          local owes = units < 0
          if owes then units = -units end
          local from, g = m, A[P + 10]
          while g ~= 0 do from, g = g, fmod(from, g) end
          m = A[P + 10] / from
          local whole = (units - fmod(units, m)) / m
          if whole >= full / den then
            units = full
          else
            local rem, q, r, bit, d = units - whole * m, 0, 0, 4503599627370496, den
            while bit >= 1 do
              q, r = q * 2, r * 2
              if r >= m then q, r = q + 1, r - m end
              if d >= bit then
                d, r = d - bit, r + rem
                if r >= m then q, r = q + 1, r - m end
              end
              bit = bit / 2
            end
            units = whole * den + q + (owes and r > 0 and 1 or 0)
          end
          if owes then units = -units end
        elseif adjust < 0 and held > 0 and ends == A[P + 19] and now < ends and at < ends then
          local back = -adjust < held and -adjust or held
          units, held, adjust = units + back * den, held - back, 0
          if held == 0 then ends = 0 end
        end
        if held > 0 and at < ends then -- until the slot ends there is no room for refill in what is leased
          local cap, to = full - (held < full / den and held * den or full), now < ends and now or ends
          if to > at then
            units = units + (to - at) * num
            at = to
          end
          if units > cap then units = cap end
        end
        if now > at then
          units = units + (now - at) * num -- exact below full; beyond, it is cut
          at = now
        end
        if units > full then units = full end
      end
      -- What may come back of the slot that ended last: the least room above the level since then.
      local cap = full
      if held > 0 then
        local of = held < full / den and held * den or full
        if ends <= at then late, ended, held, ends = of, ends, 0, 0 else cap = full - of end
      end
      if not same or ended > at or at >= ended + slot then late = 0 end
      if late > cap - units then late = cap - units end
      if late < 0 then late = 0 end
      if adjust < 0 and late > 0 and ended == A[P + 19] then
        given = -adjust < full / den and -adjust * den or full
        if given > late then given = late end
        units, late = units + given, late - given
      end
      if adjust > 0 and (now - A[P + 19]) * num < full then
        local less = units - (adjust < 2 * full / den and adjust * den or 2 * full)
        if less >= -full then units = less elseif units > -full then units = -full end
      end
      local need = A[P + 4]
      admits = flags < 2 and (need == 0 or units >= need)
      if admits then
        units = units - need
        if leases(P) then
          if ends == 0 then ends = start_of(at, slot, A[P + 20]) + slot end
          local left, room = units, full / den - held - need / den
          if A[P + 17] == 1 then
            left = units + (ends - at) * num
            if full + units < room * den then room = (full + units - fmod(full + units, den)) / den end -- down to -full
          end
          left = (left - fmod(left, den)) / den -- below zero it is rounded up, and then it is nothing either way
          left = offer(P, left < room and left or room)
          units, held = units - left * den, held + need / den + left
        end
        na[tier], nb[tier], nc[tier], nfresh[tier] = at, units, A[P + 9], at + (full - units) / num
        if late > 0 then nlate[tier] = {ended, late} end
        if given > 0 then -- receipts from before must find it
          ngiven[tier] = given
          if at + full / num > nfresh[tier] then nfresh[tier] = at + full / num end
        end
        if held > 0 then
          nheld[tier] = {ends, held}
          local later = ends + (held < full / den and held * den or full) / num
          if later > nfresh[tier] then nfresh[tier] = later end
        end
      end
    elseif alg < 3 then -- fixed_window, sliding_window: cost, threshold, period, offset, tick, ticks, slot
      local cost, period, offset = A[P + 4], A[P + 6], A[P + 7]
      if at > now + SKEW then
        local r = fmod(at - now, period)
        at = at - (at - now - r) - (r > 0 and period or 0)
        st[x], dirty = at, true
      end
      local own = start_of(now, period, offset) -- on the limit's grid; what is stored may lie on another one
      local start, cur, prev, weight = own, 0, 0, 0
      if at >= own then
        start, cur, prev = at, units, m
      elseif at > own - period then
        cur, prev = units, m
      elseif at > own - 2 * period then
        prev = units
      end
      if adjust ~= 0 then
        local of, most = start_of(A[P + 19] - start, period, 0), alg == 1 and 2199023255552 or 4294967296
        if of == 0 then
          cur = between(0, cur + adjust, most)
        elseif of == -period then
          prev = between(0, prev + adjust, most)
        end
      end
      local off = start > own and fmod(start - own, period) ~= 0
      if off then
        weight = prev
      elseif alg == 2 then
        weight = weighted(prev, start, now, period, A[P + 8], A[P + 9])
      end
      admits = flags < 2 and (cost == 0 or weight + cur + cost <= A[P + 5])
      if admits then
        cur = cur + cost
        if leases(P) then
          if A[P + 17] == 1 then -- what is left when the ramp ends
            local since = now > start and now - start or 0
            local ends = start + between(0, since - fmod(since, A[P + 10]) + A[P + 10], period)
            if not off then weight = weighted(prev, start, ends, period, A[P + 8], A[P + 9]) end
          end
          cur = cur + offer(P, A[P + 5] - weight - cur)
        end
        na[tier], nb[tier], nc[tier], nfresh[tier] = start, cur, prev, start + (alg + 1) * period
      end
    elseif alg == 7 then -- quota: cost, threshold, and four edges around the caller's now
      local e = P + 6
      while e < P + 9 and now >= A[e + 1] do e = e + 1 end
      if now < A[P + 6] or e == P + 9 then return redis.error_reply('SLUICE clocks differ by more than a period of a quota') end
      if at > now + SKEW then
        at, m = A[e], A[e + 1]
        st[x], st[z], dirty = at, m, true
      end
      if (m == 0 and units == 0) or now >= m then at, units, m = A[e], 0, A[e + 1] end
      if adjust ~= 0 and A[P + 19] >= at and A[P + 19] < m then units = between(0, units + adjust, 2199023255552) end
      admits = flags < 2 and (A[P + 4] == 0 or units + A[P + 4] <= A[P + 5])
      if admits then
        units = units + A[P + 4]
        if leases(P) then units = units + offer(P, A[P + 5] - units) end
        na[tier], nb[tier], nc[tier], nfresh[tier] = at, units, m, m
      end
    elseif alg == 6 then -- leaky_bucket: need, num, period; it adjusts in 1/num µs, as it needs
      local need, num, period = A[P + 4], A[P + 5], A[P + 6]
      if m ~= 0 and at > now + period + SKEW then
        at, units = now + period, 0
        st[x], st[y], dirty = at, units, true
      end
      if adjust > 0 and now - A[P + 19] < period then
        if m == 0 or at < now then
          at, units = now, 0
        elseif m ~= num and units > 0 then
          at, units = at + 1, 0
        end
        local r = fmod(adjust + units, num)
        at = at + (adjust + units - r) / num
        at, units, m = at < now + period and at or now + period, r, num
      elseif adjust < 0 and m ~= 0 and at >= now then
        if m ~= num and units > 0 then at, units = at + 1, 0 end
        if adjust <= -4503599627370496 then -- all
          at, units = now, 0
        else
          local r = fmod(-adjust, num)
          at, units = at + (adjust + r) / num, units - r
          if units < 0 then at, units = at - 1, units + num end
        end
        if at < now then at, units = now, 0 end
        m = num
      end
      admits = flags < 2 and (need == 0 or m == 0 or at < now or (at == now and units == 0))
      if admits then
        if need > 0 then
          units, m = fmod(need, num), num
          at = now + (need - units) / num
        end
        na[tier], nb[tier], nc[tier], nfresh[tier] = at, units, m, at < now and now or at + 1
      end
    else -- sliding_buckets, sliding_log: cost, threshold, period, width and buckets (0 for a log), key and key of the others
      local cost, period, width = A[P + 4], A[P + 6], A[P + 7]
      local zkey = KEYS[redirected and A[P + 10] or A[P + 9]]
      if not is_set(zkey) then return unreadable(zkey, 'is not a sorted set') end
      local stamp, oldest = now, now - period + 1
      if width > 0 then
        local r = fmod(now, width)
        stamp = now - r
        oldest = stamp - A[P + 8] * width
      end
      -- Entries are "time:units" by time; the state is their sum and the time their expiry is armed until.
      if m > 0 and call('EXISTS', zkey) == 0 then
        units, m = 0, 0
      elseif m == 0 then -- the pack is gone, perhaps because somebody deleted it: what the set holds still counts
        for _, e in ipairs(call('ZRANGEBYSCORE', zkey, '-inf', '+inf')) do units = units + units_of(e) end
      end
      local used, latest, retry, over = units, 0, 0, 0
      -- What the set does not show: units that count from a time on, in order; and such that count no more.
      local unseen, gone, gone_at, last = {}, 0, nil, string.format('%.0f', now + period + SKEW)
      local reach = now -- the last time that is stamped
      if units > 0 then
        local far, moved = call('ZRANGEBYSCORE', zkey, string.format('(%.0f', now + period + SKEW), '+inf'), 0
        for _, e in ipairs(far) do moved = moved + units_of(e) end
        if charge == 1 and #far > 0 then -- stamped by a clock that leapt ahead: they count from now
          alter(zkey, stamp, moved)
          for _, e in ipairs(far) do call('ZREM', zkey, e) end
        elseif moved > 0 then -- and a look may not move them
          unseen[1] = {stamp, moved}
        end
        for _, e in ipairs(call('ZRANGEBYSCORE', zkey, '-inf', string.format('(%.0f', oldest))) do
          used = used - units_of(e)
        end
      end
      local change = nil
      if adjust ~= 0 then
        local time = A[P + 19]
        if width > 0 then time = start_of(time, width, 0) end
        if time >= oldest and time <= now + period then
          if adjust > 0 then
            if adjust > 2199023255552 - units then adjust = units < 2199023255552 and 2199023255552 - units or 0 end
            table.insert(unseen, unseen[1] and unseen[1][1] <= time and 2 or 1, {time, adjust})
            if time > reach then reach = time end
          else
            local there, text = 0, string.format('%.0f', time)
            for _, e in ipairs(call('ZRANGEBYSCORE', zkey, text, text)) do there = there + units_of(e) end
            gone, gone_at = there < -adjust and there or -adjust, time
            adjust = -gone
            if unseen[1] and unseen[1][1] == time then
              local more = between(0, -A[P + 18] - gone, unseen[1][2])
              unseen[1][2], adjust = unseen[1][2] - more, adjust - more
            end
          end
          used, change = used + adjust, {time, adjust}
        end
      end
      admits = flags < 2 and (cost == 0 or used + cost <= A[P + 5])
      if used > 0 then
        for _, u in ipairs(unseen) do
          if u[2] > 0 then latest = u[1] end
        end
        local e = call('ZREVRANGEBYSCORE', zkey, last, '-inf', 'WITHSCORES', 'LIMIT', 0, 2)
        local time = tonumber(e[2]) or 0
        if time == gone_at and units_of(e[1]) == gone then time = tonumber(e[4]) or 0 end
        if time > latest then latest = time end
        if latest == 0 then latest = stamp end
        if not admits and flags < 2 then
          over = used + cost - A[P + 5]
          local left, k = over, 1
          for _, e in ipairs(call('ZRANGEBYSCORE', zkey, string.format('%.0f', oldest), last, 'LIMIT', 0, over + 1)) do
            local time, n = tonumber(string.match(e, '^%d+')) or stamp, units_of(e)
            if time == gone_at then n = n - gone end
            while left > 0 and unseen[k] and unseen[k][1] <= time do
              if unseen[k][2] > 0 then left, retry = left - unseen[k][2], unseen[k][1] end
              k = k + 1
            end
            if left <= 0 then break end
            if n > 0 then left, retry = left - n, time end
          end
          while left > 0 and unseen[k] do
            if unseen[k][2] > 0 then left, retry = left - unseen[k][2], unseen[k][1] end
            k = k + 1
          end
        end
      end
      if not (used >= 0 and exact(used) and exact(latest) and exact(retry)) then
        return unreadable(zkey, 'has entries of another kind')
      end
      summary[#summary + 1] = pack('<dddd', used, latest, retry, over)
      if admits then
        local total = cost
        if leases(P) then
          stamp = now + A[P + 16]
          if width > 0 then stamp = start_of(stamp, width, 0) end
          if stamp > reach then reach = stamp end
          total = total + offer(P, A[P + 5] - used - cost)
        end
        stamped = stamped or {}
        stamped[tier] = {zkey, stamp, total, string.format('(%.0f', oldest), reach - now + period + 2 * width, change}
        na[tier], nb[tier], nc[tier], nfresh[tier] = 0, used + total, m, reach + period + 2 * width
      end
    end
    if not admits then
      if flags % 2 == 1 then
        refused = refused or {}
        refused[A[P + 3]] = true
      else
        admitted = false
      end
    end
    P = P + STEP
  end
  repaired = repaired or dirty
  for j = 1, n do
    before[#before + 1] = pack('<ddd', st[3 * j - 2], st[3 * j - 1], st[3 * j])
    if byte(mine, 25 * j - 24) == 5 then
      local r, h, l = refunds[j] or none, helds[j] or none, lates[j] or none
      before[#before + 1] = pack('<dddddd', r[1], r[2], h[1], h[2], l[1], l[2])
    end
  end
  states[i], fresh[i] = st, dirty and now + 60000000 or 0
  packs[i] = {key, armed, mine, behind, redirected, refunds, helds, lates, {}, kept > 0 and A[base + 3] == 0}
end

if charge == 1 and admitted and crowded then
  return redis.error_reply('SLUICE full: ' .. crowded .. ' would keep more than ' .. MOST ..
    ' records of limits that this request does not name; they are dropped when they make no difference any more')
end
if charge == 1 and (admitted or repaired and not crowded) then
  tier, P = 0, 3 + 6 * npacks
  for i = 1, npacks do
    local pk, st, base, until_ = packs[i], states[i], 6 * i - 3, fresh[i]
    local n = A[base + 2]
    for j = 1, n do
      tier = tier + 1
      if admitted and nc[tier] and not (A[P + 2] % 2 == 1 and refused and refused[A[P + 3]]) then
        local s = stamped and stamped[tier]
        if s then
          if s[6] then alter(s[1], s[6][1], s[6][2]) end
          if s[3] > 0 then alter(s[1], s[2], s[3]) end
          call('ZREMRANGEBYSCORE', s[1], '-inf', s[4])
          if nc[tier] < now + s[5] + SKEW then
            nc[tier] = now + 2 * s[5] + 60000000
            call('PEXPIRE', s[1], math.ceil((nc[tier] - now) / 1000))
          end
        end
        local r = pk[6][j]
        if r and st[3 * j] ~= nc[tier] then -- at another rate: receipts from before give nothing, so the next era begins
          pk[6][j] = {r[1], (r[2] + 1) % 256}
        end
        st[3 * j - 2], st[3 * j - 1], st[3 * j], pk[7][j] = na[tier], nb[tier], nc[tier], nheld[tier]
        pk[8][j] = nlate[tier]
        if ngiven[tier] then
          local sum, eras = (r and r[1] or 0) + ngiven[tier], r and r[2] or 0
          if sum >= 4503599627370496 then sum, eras = sum - 4503599627370496, (eras + 1) % 256 end
          pk[6][j] = {sum, eras}
        end
        if nfresh[tier] + SKEW > until_ then until_ = nfresh[tier] + SKEW end
        if A[P + 1] == 6 and nc[tier] ~= A[P + 5] then pk[9][j] = true end -- charged nothing
      else
        pk[9][j] = true
      end
      P = P + STEP
    end
    if until_ > 0 then
      local armed, ttl = pk[2], nil
      if armed < until_ then -- for twice as long as needed, so that it is done about once a window and not once a charge
        armed = math.floor(now + 2 * (until_ - now)) + 60000000
        ttl = math.ceil((armed - now) / 1000)
      end
      local stamp, magic, asis = pack('<d', armed), 'SLU3', nil
      local parts = {'', pk[3], stamp}
      local scattered = pk[10] -- no tier is in front: requests name different limits, and look for each record
      for j = 1, n do
        local alg = byte(pk[3], 25 * j - 24)
        if pk[9][j] and (alg == 5 or alg == 6) and st[3 * j] ~= 0 then -- what it holds is still counted in its old rate
          asis = asis or {}
          asis[j] = sub(pk[3], 25 * j - 24, 25 * j - 8) .. pack('<d', st[3 * j])
        end
        if WIDTH[alg] == 3 then
          parts[j + 3] = pack('<ddd', st[3 * j - 2], st[3 * j - 1], st[3 * j])
        elseif alg == 3 or alg == 4 then
          parts[j + 3] = pack('<dd', st[3 * j], st[3 * j - 1])
        else
          parts[j + 3] = pack('<dd', st[3 * j - 2], st[3 * j - 1])
        end
      end
      if asis or scattered then
        asis = asis or {}
        for j = 1, n do asis[j] = asis[j] or sub(pk[3], 25 * j - 24, 25 * j) end
        parts[2] = scattered and '' or table.concat(asis)
      end
      if scattered then
        for j = 1, n do parts[j + 3] = asis[j] .. stamp .. parts[j + 3] end
      end
      local function mark(of, j, numbers)
        parts[#parts + 1] = of .. sub(pk[3], 25 * j - 23, 25 * j - 8) ..
          pack('<dddd', st[3 * j], armed, numbers[1], numbers[2])
      end
      for j, r in pairs(pk[6]) do mark('\133', j, r) end
      for j, h in pairs(pk[7]) do mark('\197', j, h) end
      for j, l in pairs(pk[8]) do mark('\229', j, l) end
      if not scattered and (next(pk[7]) or next(pk[8])) then magic = 'SLU4' end
      parts[1] = pack('<c4H', magic, scattered and 0 or n)
      parts[#parts + 1] = pk[4]
      local value = table.concat(parts)
      if ttl then
        call('SET', pk[1], value, 'PX', ttl)
        if A[base + 3] == 1 and not pk[5] and is_set(KEYS[A[base + 5]]) then -- if it is none, the next new value says so
          call('ZREMRANGEBYSCORE', KEYS[A[base + 5]], '-inf', now)
          call('ZADD', KEYS[A[base + 5]], string.format('%.0f', armed), pk[1])
          call('PEXPIRE', KEYS[A[base + 5]], 2 * ttl)
        end
      else
        call('SET', pk[1], value, 'KEEPTTL')
      end
    end
  end
end
return pack('<dd', now, admitted and 1 or 0) .. table.concat(before) .. table.concat(summary)
