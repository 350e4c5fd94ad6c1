-- decide.lua makes one decision over all limits of an owner: it charges all of them, or none. The package comment of
-- package redis describes the layout of packs, and package limit the algorithms. The script computes the same as
-- package limit, to the unit: it uses integers below 2^53 only, and never rounds. It handles every request; the scripts
-- that shapescripts.go generates handle the usual ones, about three times as fast.
--
-- In order, the script reads each pack (load), evaluates each of its tiers in the branch of the tier's algorithm, and,
-- if all enforcing limits admit, writes the sorted sets and the packs. query.go writes its arguments, and reply.go
-- reads its reply: the states before the charge, which package limit evaluates a second time.
--
-- KEYS are the keys of packs and sorted sets. ARGV[1] holds doubles, ARGV[2] the format by which a chunk of them is
-- unpacked, ARGV[3] the heads of the tiers (25 bytes each). The doubles, in the table A:
--
--   A[1..3]            the time, µs (below zero: use the server's clock); 1 to charge, plus 2 if leases are asked for,
--                      plus 4 if the last key is to keep the reply; the number of packs
--   A[base + 1..6]     of each pack, base = 3, 9, …: the number of its key; of its tiers; 1 if it is the pack of a
--                      value. For a value: the numbers of the keys of the pack that all further values share and of the
--                      set of values; the most values
--   A[P + 1..10]       of each tier, P = 3 + 6 × packs, …: the algorithm; 1 for a shadow limit, plus 2 if the cost
--                      never fits; the number of the limit; and seven numbers that the algorithm's branch names in its
--                      comment
--   A[P + 11..20]      only if leases are asked for: least, most, ample, plenty and share (in 1/1024) of
--                      limit.LeaseRequest; the life of the lease, µs; 1 for a ramp; the correction and its time; and
--                      the time at which a slot of the owner begins
--
-- A state is three numbers here: those of the pack, where a token_bucket or leaky_bucket has its rate as the third. The
-- state of a sliding_log or of sliding_buckets is 0, the sum, and the time until which the expiry of its set is set.
--
-- WIDTH is the number of doubles of a state, by algorithm, and of the marks of a token_bucket: what was refunded (133),
-- what is leased (197), and what may come back late (229). scripts.go writes it before the first line of this file.
local sunpack, pack, sub, byte, fmod, call = struct.unpack, struct.pack, string.sub, string.byte, math.fmod, redis.call
local SKEW = 5000000 -- µs; a stored time that is further ahead was written by a clock that leapt ahead
local AT_DECISION = 9007199254740992 -- limit.AtDecision: the correction counts where a charge would count
local MOST_GRAINS = 4503599627370496 -- 2^52; a full bucket has fewer
local LATEST = 9007199254740992 -- 2^53 µs, in the year 2255; an expiry may be set for later, but a pack says no later
local MAX_RECORDS = 16384 -- of tiers that the request does not name, in one pack; see package redis
local A, chunk = {sunpack(ARGV[2], ARGV[1])}, #ARGV[2] - 1
for p = 8 * chunk, #ARGV[1] - 1, 8 * chunk do
  local more = {sunpack(ARGV[2], ARGV[1], p + 1)}
  for j = 1, chunk do A[p / 8 + j] = more[j] end
end
local ids = ARGV[3]
local now, charge, pack_count = A[1], A[2], A[3]
local reply_key = charge >= 4 and KEYS[#KEYS] -- see lostreply.go
if reply_key then
  charge = charge - 4
  -- Whoever made the call has stopped waiting for it, and was told that nothing is charged.
  if call('EXISTS', reply_key) == 1 then return 0 end
end
local with_leases, STRIDE = charge >= 2, 10 -- numbers of a tier
if with_leases then charge, STRIDE = charge - 2, 20 end
if now < 0 then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

local states, armed_least, packs = {}, {}, {}
local new_a, new_b, new_c, new_fresh_at, set_changes = {}, {}, {}, {}, nil
local new_leased, new_late, new_returned = {}, {}, {} -- of token buckets, after the charge
local all_admit, refused_shadows, has_repairs, full_key = true, nil, nil, nil
local tier, P, before, summary = 0, 3 + 6 * pack_count, {''}, {}
local none = {0, 0}
-- by the set of values: its size; by key: packs of further values that are in use
local value_counts, used_others = {}, {}

-- unreadable returns the error for a key that cannot be read. The key expires within a minute, so that it does not lock
-- the owner out for good.
local function unreadable(key, why)
  call('PEXPIRE', key, 60000, 'LT')
  return redis.error_reply('SLUICE unreadable: ' .. key .. ' ' .. why .. '; it is dropped in a minute')
end

-- foreign returns the error for a pack of another version. The pack may hold charges, so it stays unchanged: an
-- operator decides about it.
local function foreign(key, value)
  return redis.error_reply('SLUICE unreadable: ' .. key .. ' holds a pack of version ' ..
    string.format('%q', sub(value, 1, 4)) .. ', which this release of Sluice does not read, and so does not take for ' ..
    'empty; wait until the key expires, or delete it')
end

-- exact reports whether a number is an integer that doubles represent exactly.
local function exact(v) return v == math.floor(v) and v >= -9007199254740992 and v <= 9007199254740992 end

-- number returns a double of a pack, and fails unless it is an exact integer.
local function number(v)
  assert(exact(v))
  return v
end

-- marked returns the two numbers of a bucket's mark at position p, or nil if p is nil.
local function marked(value, p)
  if not p then return nil end
  local a, u = sunpack('<dd', value, p)
  return {number(a), number(u)}
end

-- load reads from a pack what it holds of the n tiers whose heads are in wanted: their states, to st, and the marks of
-- buckets, to refund_marks, lease_marks and late_marks. It returns the time until which the pack's expiry is set, the
-- records of all other tiers as the next pack has them, and the number of these records. It leaves out records whose
-- time has passed: they can influence no decision.
local function load(value, wanted, n, st, refund_marks, lease_marks, late_marks)
  local magic, total = sunpack('<c4H', value)
  local q = 7 + 25 * total
  local armed = sunpack('<d', value, q)
  local want, where, rates, fronts = {}, {}, {}, {}
  local kept_count, kept_records, stamp, run = 0, {}, pack('<d', number(armed)), nil
  for j = 1, n do want[sub(wanted, 25 * j - 24, 25 * j - 8)] = true end
  q = q + 8
  for j = 0, total - 1 do
    local id = sub(value, 7 + 25 * j, 23 + 25 * j)
    local alg = byte(id)
    local after = q + 8 * WIDTH[alg]
    assert(alg < 128) -- a mark is never in front
    if want[id] then
      assert(not where[id])
      where[id], rates[id] = q, 24 + 25 * j
    else -- the tier leaves the front; its record matters until the pack would have expired
      kept_count = kept_count + 1
      kept_records[kept_count] = sub(value, 7 + 25 * j, 31 + 25 * j) .. stamp .. sub(value, q, after - 1)
    end
    if alg == 5 then fronts[id] = true end
    q = after
  end
  while q <= #value do
    local id = sub(value, q, q + 16)
    local alg = byte(id)
    local after = q + 33 + 8 * WIDTH[alg]
    local bucket = alg > 128 and '\5' .. sub(id, 2) or id
    local unchanged = false -- the record stays as it is
    if alg > 192 and magic == 'SLU5' then assert(not fronts[bucket]) end -- the generated scripts do not know leases
    if want[bucket] then
      assert(not where[id])
      where[id], rates[id] = q + 33, q + 17
    elseif fronts[bucket] then -- the mark of a bucket that leaves the front
      kept_count = kept_count + 1
      kept_records[#kept_records + 1] = sub(value, q, q + 24) .. stamp .. sub(value, q + 33, after - 1)
    else
      unchanged = not (sunpack('<d', value, q + 25) <= now)
      if unchanged then kept_count = kept_count + 1 end
    end
    if unchanged then
      run = run or q
    elseif run then
      kept_records[#kept_records + 1], run = sub(value, run, q - 1), nil
    end
    q = after
  end
  assert(q == #value + 1)
  if run then kept_records[#kept_records + 1] = sub(value, run) end
  for j = 1, n do
    local id = sub(wanted, 25 * j - 24, 25 * j - 8)
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
      assert(u >= 0 and m >= 0)
      st[3 * j - 2], st[3 * j - 1], st[3 * j] = number(a), number(u), number(m)
    end
    if alg == 5 then
      local rest = sub(id, 2)
      refund_marks[j] = marked(value, where['\133' .. rest])
      local leased, late = marked(value, where['\197' .. rest]), marked(value, where['\229' .. rest])
      assert(not leased or (leased[2] >= 0 and leased[2] <= 1099511627776))
      assert(not late or late[2] >= 0)
      if leased and leased[2] > 0 then lease_marks[j] = leased end
      if late and late[2] > 0 then late_marks[j] = late end
    end
  end
  return armed, table.concat(kept_records), kept_count
end

-- units_of returns the units of an entry of a sorted set. An entry of another form counts 0.
local function units_of(e) return tonumber(string.match(e, '^%d+:(%d+)$')) or 0 end

-- alter adds units, which may be below zero, to the entry of a time. It adds the new entry before it removes the old
-- one: a set that is empty in between loses its expiry.
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

-- offer returns how many of the units that are left are leased, of the tier whose numbers follow A[p]. See limit.Lease.
local function offer(p, left)
  if left <= 0 then return 0 end
  local least, most, part = A[p + 11], A[p + 12], left * A[p + 15]
  if left >= A[p + 14] then most = A[p + 13] end
  part = (part - fmod(part, 1024)) / 1024
  if most > part then most = part end
  if most < least then most = least end
  return most < left and most or left
end

-- leases reports whether the request asks for a lease of the tier whose numbers follow A[p].
local function leases(p) return with_leases and (A[p + 11] > 0 or A[p + 12] > 0 or A[p + 13] > 0) end

-- between returns v, limited to low..high.
local function between(low, v, high) return v < low and low or (v > high and high or v) end

-- start_of returns when the window of a time begins.
local function start_of(time, period, offset)
  local r = fmod(time - offset, period)
  if r < 0 then r = r + period end
  return time - r
end

-- scaled_up returns v·a/by, rounded up, at most MOST_GRAINS, by long division: the product passes 2^53.
local function scaled_up(v, a, by)
  local rem = fmod(v, by)
  local whole = (v - rem) / by
  if whole >= MOST_GRAINS / a then return MOST_GRAINS end
  local q, r, bit = 0, 0, MOST_GRAINS
  v = whole * a
  while bit >= 1 do
    q, r = q * 2, r * 2
    if r >= by then q, r = q + 1, r - by end
    if a >= bit then
      a, r = a - bit, r + rem
      if r >= by then q, r = q + 1, r - by end
    end
    bit = bit / 2
  end
  v = v + q + (r > 0 and 1 or 0)
  return v < MOST_GRAINS and v or MOST_GRAINS
end

-- weighted returns how much of the previous window's count still counts at a time, in a sliding_window.
local function weighted(prev, start, time, period, tick, ticks)
  local left = between(0, start + period - time, period)
  local r = fmod(left, tick)
  local w = prev * between(0, (left - r) / tick + (r > 0 and 1 or 0), ticks)
  r = fmod(w, ticks)
  return (w - r) / ticks + (r > 0 and 1 or 0)
end

-- is_set reports whether a key can be used as a sorted set.
local function is_set(key)
  local t = call('TYPE', key).ok
  return t == 'zset' or t == 'none'
end

for i = 1, pack_count do
  local base = 6 * i - 3
  local key, n, redirected = KEYS[A[base + 1]], A[base + 2], false
  local value = redis.pcall('GET', key)
  if A[base + 3] == 1 and not value then
    local set = KEYS[A[base + 5]]
    if not is_set(set) then return unreadable(set, 'is not a sorted set') end
    value_counts[set] = value_counts[set] or call('ZCOUNT', set, now, '+inf')
    if value_counts[set] < A[base + 6] then
      value_counts[set] = value_counts[set] + 1
    else
      key, redirected = KEYS[A[base + 4]], true
      if used_others[key] then return redis.error_reply('SLUICE two values share a counter: ' .. key) end
      used_others[key] = true
      value = redis.pcall('GET', key)
    end
  end
  if type(value) == 'table' then return unreadable(key, 'is not a string') end
  before[1] = before[1] .. pack('<d', redirected and 1 or 0)
  local wanted, armed, kept_records, kept_count = sub(ids, 25 * tier + 1, 25 * (tier + n)), 0, '', 0
  local st, refund_marks, lease_marks, late_marks = {}, {}, {}, {}
  for j = 1, 3 * n do st[j] = 0 end
  if value then
    local magic, fine = sub(value, 1, 4), nil
    if magic ~= 'SLU5' and magic ~= 'SLU6' then
      if sub(magic, 1, 3) == 'SLU' then return foreign(key, value) end
      return unreadable(key, 'is not a pack')
    end
    fine, armed, kept_records, kept_count =
      pcall(load, value, wanted, n, st, refund_marks, lease_marks, late_marks)
    if not fine then return unreadable(key, 'is not a pack that can be read') end
    if kept_count > MAX_RECORDS then full_key = key end
  end

  local dirty = false
  for j = 1, n do
    tier = tier + 1
    local alg, flags = A[P + 1], A[P + 2]
    local x, y, z = 3 * j - 2, 3 * j - 1, 3 * j
    local at, units, m = st[x], st[y], st[z]
    local admits = false
    local adjust = with_leases and A[P + 18] or 0

    -- A branch gets the numbers of its tier (see the head of this file), the state (at, units and m, all 0 if the counter
    -- was never used) and the correction (adjust, in which units were counted at the time A[P + 19]). It must set:
    --
    --   admits            whether the request may be charged; false if flags >= 2
    --   new_a, new_b and  if it admits: the state after the charge, in the order of at, units and m. If WIDTH is 2, m is
    --   new_c [tier]      the rate in the record's head, and new_c the tier's rate: 0 if the algorithm has none
    --   new_fresh_at      if it admits: the time from which that state equals an unused one. It must not be before now,
    --   [tier]            also if the cost is 0: the expiry of the pack follows from it
    --   st[x], st[y],     only to repair a state that a clock that leapt ahead wrote, with dirty = true. The reply holds
    --   st[z]             st, and package limit applies the correction and the charge to it a second time
    --
    -- load refuses a record whose second or third number is below zero.
    if alg == 5 then -- token_bucket: need, num, den, full, slot, rate, period
      local num, den, full = A[P + 5], A[P + 6], A[P + 7]
      local slot, leased, ends = A[P + 8], 0, 0
      local late, ended, returned = late_marks[j] and late_marks[j][2] or 0, late_marks[j] and late_marks[j][1] or 0, 0
      if lease_marks[j] then
        ends, leased = lease_marks[j][1], lease_marks[j][2]
        if at > now + SKEW or ends > now + 2000000 + SKEW then
          ends = ends > now + slot and now + slot or ends
          lease_marks[j], late_marks[j], late, dirty = {ends, leased}, nil, 0, true
          if at > now then at, st[x] = now, now end
        end
      end
      local same = m == A[P + 9]
      local missing = 0 -- no more than this can be leased
      local old_num, old_den, was_over -- of a record with another rate; whether it misses more than the burst
      if m == 0 then
        at, units = now, full
      else
        if at > now + SKEW then
          at, st[x], late_marks[j], late, dirty = now, now, nil, 0, true
        end
        -- The record says what is missing until the bucket is full, and units is the level from here on.
        if same then
          units = full - units
        else
          local g, rest = m, A[P + 10]
          while rest ~= 0 do g, rest = rest, fmod(g, rest) end
          old_num, old_den = m / g, A[P + 10] / g
          was_over = (units - fmod(units, old_den)) / old_den >= full / den
          if not was_over then
            units = full - scaled_up(units, den, old_den)
          elseif m > A[P + 9] then -- what is missing beyond the burst refills at the faster rate
            units = -scaled_up(units - full / den * old_den, num, old_num)
          else
            units = -scaled_up(units - full / den * old_den, den, old_den)
          end
        end
        if same and adjust < 0 and leased > 0 and ends == A[P + 19] and now < ends and at < ends then
          local back = -adjust < leased and -adjust or leased
          units, leased, adjust = units + back * den, leased - back, 0
          if leased == 0 then ends = 0 end
        end
        missing = full - units
        if leased > 0 and at < ends then -- until the slot ends, nothing refills in place of leased units
          local cap, to = full - leased_grains(leased, den, missing), now < ends and now or ends
          if to > at then
            units = units + (to - at) * num
            at = to
          end
          if units > cap then units = cap end
        end
        if now > at then
          units = units + (now - at) * num -- exact below full; a larger level is cut to full
          at = now
        end
        if units > full then units = full end
      end
      -- late is how much may still come back from the slot that ended last: the least room above the level since then.
      local cap = full
      if leased > 0 then
        local of = leased_grains(leased, den, missing)
        if ends <= at then late, ended, leased, ends = of, ends, 0, 0 else cap = full - of end
      end
      if not same or ended > at or at >= ended + slot then late = 0 end
      if late > cap - units then late = cap - units end
      if late < 0 then late = 0 end
      if adjust < 0 and late > 0 and ended == A[P + 19] then
        returned = -adjust < full / den and -adjust * den or full
        if returned > late then returned = late end
        units, late = units + returned, late - returned
      end
      if adjust > 0 and (now - A[P + 19]) * num < full then
        local less = units - (adjust < 2 * full / den and adjust * den or 2 * full)
        if less >= -full then units = less elseif units > -full then units = -full end
      end
      local need = A[P + 4]
      admits = flags < 2 and (need == 0 or units >= need)
      if admits then
        units = units - need
        local still_over = was_over and units < 0 and m > A[P + 9]
        if leases(P) then
          if ends == 0 then ends = start_of(at, slot, A[P + 20]) + slot end
          local left, room = units, full / den - leased - need / den
          if A[P + 17] == 1 then
            left = units + (ends - at) * num
            -- a ramp may bring the level down to -full
            if full + units < room * den then room = (full + units - fmod(full + units, den)) / den end
          end
          left = (left - fmod(left, den)) / den -- rounds up below zero, where offer returns 0 anyway
          left = offer(P, left < room and left or room)
          units, leased = units - left * den, leased + need / den + left
        end
        new_a[tier], new_b[tier], new_c[tier], new_fresh_at[tier] = at, full - units, A[P + 9], at + (full - units) / num
        if still_over then -- the record keeps its rate
          new_b[tier], new_c[tier] = full / den * old_den + scaled_up(-units, old_num, num), m
        end
        if late > 0 then new_late[tier] = {ended, late} end
        if returned > 0 then -- counts as refunded for receipts of earlier charges
          new_returned[tier] = returned
          if at + full / num > new_fresh_at[tier] then new_fresh_at[tier] = at + full / num end
        end
        if leased > 0 then
          new_leased[tier] = {ends, leased}
          local later = ends + leased_grains(leased, den, missing) / num
          if later > new_fresh_at[tier] then new_fresh_at[tier] = later end
        end
      end
    elseif alg < 3 then -- fixed_window, sliding_window: cost, threshold, period, offset, tick, ticks, slot
      local cost, period, offset = A[P + 4], A[P + 6], A[P + 7]
      if at > now + SKEW then
        local r = fmod(at - now, period)
        at = at - (at - now - r) - (r > 0 and period or 0)
        st[x], dirty = at, true
      end
      -- own_start is the start of the window by the limit. The stored window may lie elsewhere, if the limit's align has
      -- changed.
      local own_start = start_of(now, period, offset)
      local start, cur, prev, weight = own_start, 0, 0, 0
      if at >= own_start then
        start, cur, prev = at, units, m
      elseif at > own_start - period then
        cur, prev = units, m
      elseif at > own_start - 2 * period then
        prev = units
      end
      if adjust ~= 0 then
        local of, most = start_of(A[P + 19] - start, period, 0), alg == 1 and 2199023255552 or 4294967296
        if A[P + 19] == AT_DECISION then of = 0 end
        if of == 0 then
          cur = between(0, cur + adjust, most)
        elseif of == -period then
          prev = between(0, prev + adjust, most)
        end
      end
      local off = start > own_start and fmod(start - own_start, period) ~= 0
      if off then
        weight = prev
      elseif alg == 2 then
        weight = weighted(prev, start, now, period, A[P + 8], A[P + 9])
      end
      admits = flags < 2 and (cost == 0 or weight + cur + cost <= A[P + 5])
      if admits then
        cur = cur + cost
        if leases(P) then
          if A[P + 17] == 1 then -- units of a ramp must be free when it ends
            local since = now > start and now - start or 0
            local ends = start + between(0, since - fmod(since, A[P + 10]) + A[P + 10], period)
            if not off then weight = weighted(prev, start, ends, period, A[P + 8], A[P + 9]) end
          end
          cur = cur + offer(P, A[P + 5] - weight - cur)
        end
        new_a[tier], new_b[tier], new_c[tier], new_fresh_at[tier] = start, cur, prev, start + (alg + 1) * period
      end
    elseif alg == 7 then -- quota: cost, threshold, and four consecutive edges of periods around the caller's time
      local e = P + 6
      while e < P + 9 and now >= A[e + 1] do e = e + 1 end
      if now < A[P + 6] or e == P + 9 then return redis.error_reply('SLUICE clocks differ by more than a period of a quota') end
      if at > now + SKEW then
        at, m = A[e], A[e + 1]
        st[x], st[z], dirty = at, m, true
      end
      if (m == 0 and units == 0) or now >= m then at, units, m = A[e], 0, A[e + 1] end
      if adjust ~= 0 and (A[P + 19] == AT_DECISION or A[P + 19] >= at and A[P + 19] < m) then
        units = between(0, units + adjust, 2199023255552)
      end
      admits = flags < 2 and (A[P + 4] == 0 or units + A[P + 4] <= A[P + 5])
      if admits then
        units = units + A[P + 4]
        if leases(P) then units = units + offer(P, A[P + 5] - units) end
        new_a[tier], new_b[tier], new_c[tier], new_fresh_at[tier] = at, units, m, m
      end
    elseif alg == 6 then -- leaky_bucket: need, num, period; need and the correction are in grains
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
        if adjust <= -4503599627370496 then -- all of it
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
        new_a[tier], new_b[tier], new_c[tier], new_fresh_at[tier] = at, units, m, at < now and now or at + 1
      end
    elseif alg == 3 or alg == 4 then
      -- sliding_buckets, sliding_log: cost, threshold, period, width and buckets (0 for a log), number of the set's key,
      -- and of the key of the set that further values share
      local cost, period, width = A[P + 4], A[P + 6], A[P + 7]
      local zkey = KEYS[redirected and A[P + 10] or A[P + 9]]
      if not is_set(zkey) then return unreadable(zkey, 'is not a sorted set') end
      local stamp, oldest = now, now - period + 1
      if width > 0 then
        local r = fmod(now, width)
        stamp = now - r
        oldest = stamp - A[P + 8] * width
      end
      -- The set's entries are "time:units", by time. The state is their sum and the time until which the set's expiry
      -- is set.
      if m > 0 and call('EXISTS', zkey) == 0 then
        units, m = 0, 0
      elseif m == 0 then -- the pack was deleted, and the entries of the set still count
        for _, e in ipairs(call('ZRANGEBYSCORE', zkey, '-inf', '+inf')) do units = units + units_of(e) end
      end
      local used, latest, more, retry, over = units, 0, 0, 0, 0
      -- Changes that are not in the set yet: units to add, as {time, units} by time, and units removed at a time.
      local pending, removed, removed_at, last = {}, 0, nil, string.format('%.0f', now + period + SKEW)
      local last_time = now -- the latest time that an entry may have
      if units > 0 then
        local far, moved = call('ZRANGEBYSCORE', zkey, string.format('(%.0f', now + period + SKEW), '+inf'), 0
        for _, e in ipairs(far) do moved = moved + units_of(e) end
        if charge == 1 and #far > 0 then -- written by a clock that leapt ahead: these units count from now
          alter(zkey, stamp, moved)
          for _, e in ipairs(far) do call('ZREM', zkey, e) end
        elseif moved > 0 then -- a Peek may not move them
          pending[1] = {stamp, moved}
        end
        for _, e in ipairs(call('ZRANGEBYSCORE', zkey, '-inf', string.format('(%.0f', oldest))) do
          used = used - units_of(e)
        end
      end
      local change = nil
      if adjust ~= 0 then
        local time = A[P + 19]
        if adjust > 0 and time == AT_DECISION then time = now end
        if width > 0 then time = start_of(time, width, 0) end
        if time >= oldest and time <= now + period then
          if adjust > 0 then
            if adjust > 2199023255552 - units then adjust = units < 2199023255552 and 2199023255552 - units or 0 end
            table.insert(pending, pending[1] and pending[1][1] <= time and 2 or 1, {time, adjust})
            if time > last_time then last_time = time end
          else
            local there, text = 0, string.format('%.0f', time)
            for _, e in ipairs(call('ZRANGEBYSCORE', zkey, text, text)) do there = there + units_of(e) end
            removed, removed_at = there < -adjust and there or -adjust, time
            adjust = -removed
            if pending[1] and pending[1][1] == time then
              local more = between(0, -A[P + 18] - removed, pending[1][2])
              pending[1][2], adjust = pending[1][2] - more, adjust - more
            end
          end
          used, change = used + adjust, {time, adjust}
        end
      end
      admits = flags < 2 and (cost == 0 or used + cost <= A[P + 5])
      if used > 0 then
        for _, u in ipairs(pending) do
          if u[2] > 0 then latest = u[1] end
        end
        local e = call('ZREVRANGEBYSCORE', zkey, last, '-inf', 'WITHSCORES', 'LIMIT', 0, 2)
        local time = tonumber(e[2]) or 0
        if time == removed_at and units_of(e[1]) == removed then time = tonumber(e[4]) or 0 end
        if time > latest then latest = time end
        if latest == 0 then latest = stamp end
        -- more is when one unit more remains than now, and retry when the cost fits: when so many units expire.
        local free, gone, k = used > A[P + 5] and used - A[P + 5] + 1 or 1, 0, 1
        if not admits and flags < 2 then over = used + cost - A[P + 5] end
        local goal = over > free and over or free
        local function expire(time, n)
          if gone < free then more = time end
          if gone < over then retry = time end
          gone = gone + n
        end
        for _, e in ipairs(call('ZRANGEBYSCORE', zkey, string.format('%.0f', oldest), last, 'LIMIT', 0, goal + 1)) do
          local time, n = tonumber(string.match(e, '^%d+')) or stamp, units_of(e)
          if time == removed_at then n = n - removed end
          while gone < goal and pending[k] and pending[k][1] <= time do
            if pending[k][2] > 0 then expire(pending[k][1], pending[k][2]) end
            k = k + 1
          end
          if gone >= goal then break end
          if n > 0 then expire(time, n) end
        end
        while gone < goal and pending[k] do
          if pending[k][2] > 0 then expire(pending[k][1], pending[k][2]) end
          k = k + 1
        end
      end
      if not (used >= 0 and exact(used) and exact(latest) and exact(more) and exact(retry)) then
        return unreadable(zkey, 'has entries of another kind')
      end
      summary[#summary + 1] = pack('<ddddd', used, latest, more, retry, over)
      if admits then
        local total = cost
        if leases(P) then
          stamp = now + A[P + 16]
          if width > 0 then stamp = start_of(stamp, width, 0) end
          if stamp > last_time then last_time = stamp end
          total = total + offer(P, A[P + 5] - used - cost)
        end
        set_changes = set_changes or {}
        local oldest_score, matters_for = string.format('(%.0f', oldest), last_time - now + period + 2 * width
        set_changes[tier] = {zkey, stamp, total, oldest_score, matters_for, change}
        new_a[tier], new_b[tier], new_c[tier], new_fresh_at[tier] = 0, used + total, m, last_time + period + 2 * width
      end
    else
      return redis.error_reply('SLUICE decide.lua has no branch for algorithm ' .. alg)
    end
    if not admits then
      if flags % 2 == 1 then
        refused_shadows = refused_shadows or {}
        refused_shadows[A[P + 3]] = true
      else
        all_admit = false
      end
    end
    P = P + STRIDE
  end
  has_repairs = has_repairs or dirty
  for j = 1, n do
    before[#before + 1] = pack('<ddd', st[3 * j - 2], st[3 * j - 1], st[3 * j])
    if byte(wanted, 25 * j - 24) == 5 then
      local r, h, l = refund_marks[j] or none, lease_marks[j] or none, late_marks[j] or none
      before[#before + 1] = pack('<dddddd', r[1], r[2], h[1], h[2], l[1], l[2])
    end
  end
  states[i], armed_least[i] = st, dirty and now + 60000000 or 0
  -- The ninth field holds the tiers that stay uncharged. The tenth says that no tier is to be in front.
  local scattered = kept_count > 0 and A[base + 3] == 0
  packs[i] = {key, armed, wanted, kept_records, redirected, refund_marks, lease_marks, late_marks, {}, scattered}
end

if charge == 1 and all_admit and full_key then
  return redis.error_reply('SLUICE full: ' .. full_key .. ' would keep more than ' .. MAX_RECORDS ..
    ' records of limits that this request does not name; they are dropped when they make no difference any more')
end
if charge == 1 and (all_admit or has_repairs and not full_key) then
  tier, P = 0, 3 + 6 * pack_count
  for i = 1, pack_count do
    local pk, st, base, until_ = packs[i], states[i], 6 * i - 3, armed_least[i]
    local n = A[base + 2]
    for j = 1, n do
      tier = tier + 1
      if all_admit and new_c[tier] and not (A[P + 2] % 2 == 1 and refused_shadows and refused_shadows[A[P + 3]]) then
        local s = set_changes and set_changes[tier]
        if s then
          if s[6] then alter(s[1], s[6][1], s[6][2]) end
          if s[3] > 0 then alter(s[1], s[2], s[3]) end
          call('ZREMRANGEBYSCORE', s[1], '-inf', s[4])
          if new_c[tier] < now + s[5] + SKEW then
            new_c[tier] = now + 2 * s[5] + 60000000
            call('PEXPIRE', s[1], math.ceil((new_c[tier] - now) / 1000))
          end
        end
        local r = pk[6][j]
        -- the rate has changed: the next era begins, so that earlier receipts give nothing back
        if r and st[3 * j] ~= new_c[tier] then
          pk[6][j] = {r[1], (r[2] + 1) % 256}
        end
        st[3 * j - 2], st[3 * j - 1], st[3 * j], pk[7][j] = new_a[tier], new_b[tier], new_c[tier], new_leased[tier]
        pk[8][j] = new_late[tier]
        if new_returned[tier] then
          local sum, eras = (r and r[1] or 0) + new_returned[tier], r and r[2] or 0
          if sum >= 4503599627370496 then sum, eras = sum - 4503599627370496, (eras + 1) % 256 end
          pk[6][j] = {sum, eras}
        end
        if new_fresh_at[tier] + SKEW > until_ then until_ = new_fresh_at[tier] + SKEW end
        -- the state was not charged, so it keeps its old rate
        if A[P + 1] == 6 and new_c[tier] ~= A[P + 5] or A[P + 1] == 5 and new_c[tier] ~= A[P + 9] then
          pk[9][j] = true
        end
      else
        pk[9][j] = true
      end
      P = P + STRIDE
    end
    if until_ > 0 then
      local armed, ttl = pk[2], nil
      -- for twice as long as needed, so that it is set about once per window and not at each charge
      if armed < until_ then
        armed = between(0, math.floor(now + 2 * (until_ - now)) + 60000000, LATEST)
        ttl = math.ceil((armed - now) / 1000)
      end
      local stamp, magic, asis = pack('<d', armed), 'SLU5', nil
      local parts = {'', pk[3], stamp}
      local scattered = pk[10] -- no tier is in front: requests name different limits, and search for each record
      for j = 1, n do
        local alg = byte(pk[3], 25 * j - 24)
        -- the head keeps the rate by which the state is counted
        if pk[9][j] and (alg == 5 or alg == 6) and st[3 * j] ~= 0 then
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
      if not scattered and (next(pk[7]) or next(pk[8])) then magic = 'SLU6' end
      parts[1] = pack('<c4H', magic, scattered and 0 or n)
      parts[#parts + 1] = pk[4]
      local value = table.concat(parts)
      if ttl then
        call('SET', pk[1], value, 'PX', ttl)
        -- if it is no sorted set, the next new value reports that
        if A[base + 3] == 1 and not pk[5] and is_set(KEYS[A[base + 5]]) then
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
local reply = pack('<dd', now, all_admit and 1 or 0) .. table.concat(before) .. table.concat(summary)
if reply_key and all_admit then call('SET', reply_key, reply, 'PX', REPLY_KEPT_FOR) end
return reply
