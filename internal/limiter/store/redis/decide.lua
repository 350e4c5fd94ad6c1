-- decide.lua makes decisions. A decision looks at all limits of an owner. It charges all of them, or none; a shadow
-- limit that would refuse is left out. The comment of package redis describes the layout of packs, and package limit
-- the algorithms. The script comes to the same counts as package limit, to the unit: they are integers below 2^53, for
-- which the operators are exact, % too. Only the times at which keys expire are rounded.
--
-- In order, a decision reads each pack (load), evaluates each of its tiers in the branch of the tier's algorithm, and,
-- if all enforcing limits admit, writes the sorted sets and the packs. query.go writes its arguments. shared.lua and a
-- line with REPLY_KEPT_FOR, a time in ms, go before this file, and eachDecision in scripts.go after it.
--
-- The reply has doubles: the time; 1 if the request is admitted, else 0; for each pack one number (1 if the value uses
-- the pack that further values share, plus 2 if marks follow), the states before the charge, repaired if a clock leapt,
-- and, if marks follow, the six numbers of each token_bucket's mark; then five numbers for each tier with a sorted set.
-- reply.go reads it, and package limit makes the same decision once more from the states.
--
-- ARGV holds one text for each decision, and KEYS the keys of the first decision, then those of the second, and so on.
-- If there are several decisions, the script replies with an array. A text is little-endian and has, in this order:
--
--   the request  the time, µs (a double; below zero: use the server's clock); a byte of flags: 1 to charge, plus 2 if
--                leases are asked for, plus 4 if the last key is to keep the reply; how many keys and how many packs
--                the decision has (16 bits each)
--   each pack    how many values may have a pack of their own (32 bits; 0 if the pack is that of no value). Then the
--                front that the pack has if its last charge was over the same tiers: version, number of tiers, and a
--                head for each tier, which is its algorithm (a byte) and a digest (16 bytes). The pack's key is the
--                next one of the decision. The pack of a value has two further keys: of the pack that values without
--                one of their own share, and of the sorted set of the values that have one
--   each tier    (after its pack) the algorithm (a byte); flags (a byte): 1 for a shadow limit, plus 2 if the cost
--                never fits, plus 4 for the last tier of its limit; and seven doubles that the algorithm's branch names
--   its lease    only if leases are asked for: ten doubles, namely least, most, ample, plenty and share (in 1/1024) of
--                limit.LeaseRequest; the life of the lease, µs; 1 for a ramp; the correction and its time; and the
--                time at which a slot of the owner begins
--
-- Redis runs the script from its first line for each call, and Lua then makes each function anew. Callers that ask at
-- the same moment therefore share a call, and functions that the usual decision does not need are made when they are
-- needed (seldom).
local sunpack, pack, sub, concat, call, KEYS = struct.unpack, struct.pack, string.sub, table.concat, redis.call, KEYS
local clock -- the server's time, µs, once it was asked for

-- weighted returns how much of the previous window's count still counts at a time, in a sliding_window.
local function weighted(prev, start, time, period, tick, ticks)
  local left = start + period - time
  if left <= 0 or prev == 0 then return 0 end
  if left > period then left = period end
  local r = left % tick
  local ticks_left = (left - r) / tick + (r > 0 and 1 or 0)
  if ticks_left > ticks then ticks_left = ticks end
  r = prev * ticks_left % ticks
  return (prev * ticks_left - r) / ticks + (r > 0 and 1 or 0)
end

-- seldom returns the functions that the usual decision does not need. It makes them when it is called first.
local made
local function seldom()
  if made then return made end
  made = shared()
  local byte, alter = string.byte, made.alter
  local MOST = 9007199254740992 -- 2^53; no stored number is larger
  local MOST_GRAINS = 4503599627370496 -- 2^52; a full bucket has fewer

  -- load reads a pack that holds more, or others, than the n wanted tiers, whose heads begin at the 7th byte of front.
  -- It leaves out records whose time has passed: they can influence no decision. It returns:
  --
  --   1. the states of the wanted tiers, as one text
  --   2. the time until which the pack's expiry is set
  --   3. the records of all other tiers, as the next pack has them
  --   4. how many records these are
  --   5. the marks of the buckets, by tier; nil if there are none
  --
  -- A mark is six numbers: what was refunded, and its era; when the slot of leased units ends, and how many are leased;
  -- when the slot before it ended, and how many of its grains may come back late. A pack has up to three records for
  -- it, whose heads are that of the bucket with another first byte than 5: 133, 197 and 229.
  function made.load(value, front, n, now)
    local function number(p)
      local v = sunpack('<d', value, p)
      assert(v % 1 == 0 and v >= -MOST and v <= MOST)
      return v
    end
    local total = sunpack('<H', value, 5)
    local first_state, first_record = 15 + 17 * total, 15 + 41 * total
    assert(first_record <= #value + 1 and (#value + 1 - first_record) % 49 == 0)
    local stamp = sub(value, first_state - 8, first_state - 1)
    local want, where, fronts, kept, kept_count, run = {}, {}, {}, {}, 0, nil
    for p = 7, 17 * n, 17 do want[sub(front, p, p + 16)] = true end
    for j = 0, total - 1 do
      local id, state = sub(value, 7 + 17 * j, 23 + 17 * j), first_state + 24 * j
      assert(byte(id) < 128) -- a mark is never in front
      if want[id] then
        assert(not where[id])
        where[id] = state
      else -- the tier leaves the front; its record matters until the pack would have expired
        kept_count = kept_count + 1
        kept[kept_count] = id .. stamp .. sub(value, state, state + 23)
      end
      if byte(id) == 5 then fronts[id] = true end
    end
    for q = first_record, #value, 49 do
      local id = sub(value, q, q + 16)
      local bucket = byte(id) > 128 and '\5' .. sub(id, 2) or id
      local unchanged = false -- the record stays as it is
      if want[bucket] then
        assert(not where[id])
        where[id] = q + 25
      elseif fronts[bucket] then -- the mark of a bucket that leaves the front
        kept_count = kept_count + 1
        kept[#kept + 1] = id .. stamp .. sub(value, q + 25, q + 48)
      else
        unchanged = not (sunpack('<d', value, q + 17) <= now)
        if unchanged then kept_count = kept_count + 1 end
      end
      if unchanged then
        run = run or q
      elseif run then
        kept[#kept + 1], run = sub(value, run, q - 1), nil
      end
    end
    if run then kept[#kept + 1] = sub(value, run) end
    local states, marks, unused = {}, nil, string.rep('\0', 24)
    for j = 1, n do
      local id = sub(front, 17 * j - 10, 17 * j + 6)
      local p, digest = where[id], sub(id, 2)
      states[j] = p and sub(value, p, p + 23) or unused
      local refunds, leased, late = where['\133' .. digest], where['\197' .. digest], where['\229' .. digest]
      if byte(id) == 5 and (refunds or leased or late) then
        local mark = {0, 0, 0, 0, 0, 0}
        if refunds then mark[1], mark[2] = number(refunds), number(refunds + 8) end
        if leased then mark[3], mark[4] = number(leased), number(leased + 8) end
        if late then mark[5], mark[6] = number(late), number(late + 8) end
        assert(mark[4] >= 0 and mark[4] <= 1099511627776 and mark[6] >= 0)
        if mark[4] == 0 then mark[3] = 0 end
        if mark[6] == 0 then mark[5] = 0 end
        marks = marks or {}
        marks[j] = mark
      end
    end
    return concat(states), number(first_state - 8), concat(kept), kept_count, marks
  end

  -- offer returns how many of the units that are left are leased. See limit.Lease.
  function made.offer(left, least, most, ample, plenty, share)
    if left <= 0 then return 0 end
    local part = left * share
    if left >= plenty then most = ample end
    part = (part - part % 1024) / 1024
    if most > part then most = part end
    if most < least then most = least end
    return most < left and most or left
  end

  -- between returns v, limited to low..high.
  function made.between(low, v, high) return v < low and low or (v > high and high or v) end

  -- scaled_up returns v·a/by, rounded up, at most MOST_GRAINS, by long division: the product passes 2^53.
  function made.scaled_up(v, a, by)
    local rem = v % by
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

  -- charge_set makes the changes of a sorted set, and returns the text of the counter's state.
  function made.charge_set(c, now)
    if c.correction then alter(c.key, c.correction[1], c.correction[2]) end
    if c.units > 0 then alter(c.key, c.stamp, c.units) end
    call('ZREMRANGEBYSCORE', c.key, '-inf', c.oldest)
    local armed = c.armed
    if armed < c.matters_until then
      armed = 2 * c.matters_until - now + 60000000
      call('PEXPIRE', c.key, math.ceil((armed - now) / 1000))
    end
    return pack('<ddd', 0, c.sum, armed)
  end

  -- mark_records returns the records of the marks of a pack's buckets. Of a tier that is charged this is the mark after
  -- the charge, of any other the mark that was read. charged is false if the decision charges nothing.
  function made.mark_records(front, n, charged, marks, new_marks, armed)
    local records = {}
    for j = 1, n do
      local mark
      if charged and charged[j] then mark = new_marks and new_marks[j] else mark = marks and marks[j] end
      if mark then
        local digest = sub(front, 17 * j - 9, 17 * j + 6)
        for kind, at in pairs({['\133'] = 1, ['\197'] = 3, ['\229'] = 5}) do
          if mark[at] ~= 0 or mark[at + 1] ~= 0 then
            records[#records + 1] = kind .. digest .. pack('<dddd', armed, mark[at], mark[at + 1], 0)
          end
        end
      end
    end
    return concat(records)
  end

  -- finish_states makes a text of each of after: for a tier that is not charged its old state; for a tier with a sorted
  -- set, which it changes, the state that results.
  function made.finish_states(after, n, states, now)
    for j = 1, n do
      if not after[j] then
        after[j] = sub(states, 24 * j - 23, 24 * j)
      elseif type(after[j]) == 'table' then
        after[j] = made.charge_set(after[j], now)
      end
    end
  end

  return made
end

-- decide makes one decision. The algorithms are branches of it and not functions, because a call with so many numbers
-- would take longer than the branch, and its constants are its own, because Lua reads a local variable faster than one
-- of an outer function. The keys of the decision follow the first ones, which are those of other decisions.
local function decide(text, first)
  local SKEW = 5000000 -- µs; a stored time that is further ahead was written by a clock that leapt ahead
  local AT_DECISION = 9007199254740992 -- limit.AtDecision: the correction counts where a charge would count
  local MOST = 9007199254740992 -- 2^53; no stored number is larger. As a time, µs, this is in the year 2255
  local MOST_GRAINS = 4503599627370496 -- 2^52; a full bucket has fewer
  local MAX_RECORDS = 16384 -- of tiers that the request does not name, in one pack; see package redis
  local now, flags, key_count, pack_count, P = sunpack('<dBHH', text)
  local reply_key = flags >= 4 and KEYS[first + key_count] -- see lostreply.go
  -- If the key is there, whoever made the call has stopped waiting for it, has asked for the reply (findScript in
  -- lostreply.go) and was told that nothing is charged. So nothing may be charged from now on.
  if reply_key and call('EXISTS', reply_key) == 1 then return 0 end
  local charge, with_leases = flags % 2 == 1, flags % 4 >= 2
  if now < 0 then
    if not clock then
      local t = call('TIME')
      clock = t[1] * 1000000 + t[2]
    end
    now = clock
  end
  local all_admit, has_repairs, full_key = true, false, nil
  local packs, before, summary = {false}, {''}, nil
  local value_counts = nil -- by the set's key: how many values have a pack of their own, with those that are new here
  local used_others = nil -- by the key of a pack that further values share: true if a value of this decision uses it
  local k = first -- the number of the key that was used last

  for i = 1, pack_count do
    local most_values, n = sunpack('<IxxxxH', text, P)
    local front_size = 6 + 17 * n
    local front = sub(text, P + 4, P + 3 + front_size)
    P, k = P + 4 + front_size, k + 1
    local key, redirected, set = KEYS[k], false, nil
    local value = redis.pcall('GET', key)
    if most_values > 0 then
      k, set = k + 2, KEYS[k + 2]
      if not value then
        if not seldom().is_set(set) then return seldom().unreadable(set, 'is not a sorted set') end
        value_counts, used_others = value_counts or {}, used_others or {}
        value_counts[set] = value_counts[set] or call('ZCOUNT', set, now, '+inf')
        if value_counts[set] < most_values then
          value_counts[set] = value_counts[set] + 1
        else
          key, redirected = KEYS[k - 1], true
          if used_others[key] then return redis.error_reply('SLUICE two values share a counter: ' .. key) end
          used_others[key] = true
          value = redis.pcall('GET', key)
        end
      end
    end
    if type(value) == 'table' then return seldom().unreadable(key, 'is not a string') end
    -- armed is the time until which the pack's expiry is set; the others are as load returns them.
    local states, armed, records, marks = nil, 0, '', nil
    if not value then
      states = string.rep('\0', 24 * n)
    elseif #value == 14 + 41 * n and sub(value, 1, front_size) == front then
      -- the pack has just these tiers and no marks, as in nearly all decisions
      states, armed = sub(value, front_size + 9), sunpack('<d', value, front_size + 1)
    else
      local version, fine, kept_count = sub(value, 1, 4), nil, nil
      if version ~= sub(front, 1, 4) then return seldom().foreign(key, version) end
      fine, states, armed, records, kept_count, marks = pcall(seldom().load, value, front, n, now)
      if not fine then return seldom().unreadable(key, 'is not a pack that can be read') end
      if kept_count > MAX_RECORDS then full_key = key end
    end
    if armed % 1 ~= 0 or armed < -MOST or armed > MOST then
      return seldom().unreadable(key, 'is not a pack that can be read')
    end

    -- By tier: the text of its state after the charge (for a sorted set what charge_set needs; false if the tier is not
    -- charged); its mark after the charge; and the text of a state that is repaired. The four values false only reserve
    -- room, so that the table need not grow.
    local after, new_marks, repairs = {false, false, false, false}, nil, nil
    local all_text = true -- each of after is a text
    local fresh_at = -SKEW -- from when each state in after equals an unused one; -SKEW as long as no tier is charged
    local first_of_limit, fresh_before, limit_admits = 1, -SKEW, true
    for j = 1, n do
      local alg, tier_flags, n1, n2, n3, n4, n5, n6, n7
      alg, tier_flags, n1, n2, n3, n4, n5, n6, n7, P = sunpack('<BBddddddd', text, P)
      local leases, least, most, ample, plenty, share, life, ramp, adjust_at, slot_start
      local adjust = 0
      if with_leases then
        least, most, ample, plenty, share, life, ramp, adjust, adjust_at, slot_start, P =
          sunpack('<dddddddddd', text, P)
        leases = least > 0 or most > 0 or ample > 0
      end
      local at, units, m = sunpack('<ddd', states, 24 * j - 23)
      if at % 1 + units % 1 + m % 1 ~= 0 or -- also true for infinity and NaN, whose remainder is NaN
        at < -MOST or at > MOST or units < 0 or units > MOST or m < 0 or m > MOST then
        return seldom().unreadable(key, 'is not a pack that can be read')
      end
      local mark = marks and marks[j]
      local fits, admits, fresh = tier_flags % 4 < 2, false, nil

      -- A branch gets the numbers of its tier (n1 to n7), the stored state (at, units and m, all 0 if the counter was
      -- never used), and the correction (adjust, in which units were counted at the time adjust_at). at, units and m
      -- are:
      --
      --   fixed_window, sliding_window  the start of the window; its count; the count of the window before it
      --   sliding_buckets, sliding_log  0; the sum of the set's entries; the time until which the set's expiry is set
      --   token_bucket                  the time of the state; the grains that the bucket misses until it is full; the
      --                                 rate
      --   leaky_bucket                  the next free time; the fraction of a µs that belongs to it; num
      --   quota                         the start of the period; its count; the end of the period
      --
      -- A branch must set:
      --
      --   admits            whether the request may be charged; false unless the cost fits
      --   at, units and m   if it admits: the state after the charge
      --   fresh             if it admits: the time from which that state equals an unused one. It must not be before
      --                     now, also if the cost is 0: the expiry of the pack follows from it
      --   repairs[j]        only to repair a state that a clock that leapt ahead wrote: the text of the stored state as
      --                     it should be. The reply holds it, and package limit applies the correction and the charge
      --                     to it a second time
      if alg == 5 then -- token_bucket: need, num, den, full, slot, rate, period
        local need, num, den, full, slot, rate = n1, n2, n3, n4, n5, n6
        local refunded, eras, ends, leased, ended, late, returned = 0, 0, 0, 0, 0, 0, 0
        if mark then
          refunded, eras, ends, leased, ended, late = unpack(mark)
          if leased > 0 and (at > now + SKEW or ends > now + 2000000 + SKEW) then
            if ends > now + slot then ends = now + slot end
            if at > now then at = now end
            late, mark[3], mark[5], mark[6] = 0, ends, 0, 0
            repairs = repairs or {}
            repairs[j] = pack('<ddd', at, units, m)
          end
        end
        local same = m == rate
        local missing = 0 -- grains until the bucket is full; no more than these are leased
        local old_num, old_den -- the rate of the stored state, if that is another one
        local was_over -- whether a state of another rate misses more than the burst
        if m == 0 then
          at, units = now, full
        else
          if at > now + SKEW then
            at, late = now, 0
            if mark then mark[5], mark[6] = 0, 0 end
            repairs = repairs or {}
            repairs[j] = pack('<ddd', at, units, m)
          end
          -- The state says what is missing until the bucket is full, and units is the level from here on.
          if same then
            units = full - units
          else
            local g, rest = m, n7
            while rest ~= 0 do g, rest = rest, g % rest end
            old_num, old_den = m / g, n7 / g
            was_over = (units - units % old_den) / old_den >= full / den
            if not was_over then
              units = full - seldom().scaled_up(units, den, old_den)
            elseif m > rate then -- the old rate is the faster one: what is missing beyond the burst refills by it
              units = -seldom().scaled_up(units - full / den * old_den, num, old_num)
            else
              units = -seldom().scaled_up(units - full / den * old_den, den, old_den)
            end
          end
          if same and adjust < 0 and leased > 0 and ends == adjust_at and now < ends and at < ends then
            local back = -adjust < leased and -adjust or leased
            units, leased, adjust = units + back * den, leased - back, 0
            if leased == 0 then ends = 0 end
          end
          missing = full - units
          if leased > 0 and at < ends then -- until the slot ends, nothing refills in place of leased units
            local cap, to = full - seldom().leased_grains(leased, den, missing), now < ends and now or ends
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
        -- late is how many grains may still come back from the slot that ended last: at most the least room that was
        -- above the level since the slot ended.
        if mark then
          local cap = full
          if leased > 0 then
            local held = seldom().leased_grains(leased, den, missing)
            if ends <= at then late, ended, leased, ends = held, ends, 0, 0 else cap = full - held end
          end
          if not same or ended > at or at >= ended + slot then late = 0 end
          if late > cap - units then late = cap - units end
          if late < 0 then late = 0 end
          if adjust < 0 and late > 0 and ended == adjust_at then
            returned = -adjust < full / den and -adjust * den or full
            if returned > late then returned = late end
            units, late = units + returned, late - returned
          end
        end
        if adjust > 0 and (now - adjust_at) * num < full then
          local lowest, less = -full, units - adjust * den -- a product beyond 2^53 is below lowest in any case
          local beyond = was_over and m > rate and units < 0 and adjust_at == AT_DECISION
          if beyond then -- as in package limit, the units are added as grains of the faster rate
            local burst = full / den * old_den
            local lacks = burst + seldom().scaled_up(-units, old_num, num) -- grains of that rate until it is full
            local room = MOST_GRAINS > lacks and MOST_GRAINS - lacks or 0
            room = (room - room % old_den) / old_den
            lacks = lacks + (adjust < room and adjust or room) * old_den
            units = -seldom().scaled_up(lacks - burst, num, old_num)
          else
            if adjust_at == AT_DECISION then
              was_over = false
              if full - MOST_GRAINS < lowest then lowest = full - MOST_GRAINS end
            end
            if less >= lowest then units = less elseif units > lowest then units = lowest end
            if was_over and m > rate and units < 0 then -- the core writes this level before it decides: it rounds twice
              units = -seldom().scaled_up(seldom().scaled_up(-units, old_num, num), num, old_num)
            end
          end
        end
        admits = fits and (need == 0 or units >= need)
        if admits then
          units = units - need
          local still_over = was_over and units < 0 and m > rate
          if leases then
            if ends == 0 then ends = at - (at - slot_start) % slot + slot end
            local left, room = units, full / den - leased - need / den
            if ramp == 1 then
              left = units + (ends - at) * num
              -- a ramp may bring the level down to -full
              if full + units < room * den then room = (full + units - (full + units) % den) / den end
            end
            left = (left - left % den) / den -- below zero offer returns 0
            left = seldom().offer(left < room and left or room, least, most, ample, plenty, share)
            units, leased = units - left * den, leased + need / den + left
          end
          fresh = at + (full - units) / num
          if mark or leased > 0 then
            -- A receipt holds refunded and its era as of the charge. If the rate has changed, the next era begins, so
            -- that earlier receipts give nothing back.
            if (refunded ~= 0 or eras ~= 0) and not same and not still_over then eras = (eras + 1) % 256 end
            if returned > 0 then -- what comes back late must not be given back to a receipt as well
              refunded = refunded + returned
              if refunded >= MOST_GRAINS then refunded, eras = refunded - MOST_GRAINS, (eras + 1) % 256 end
              if at + full / num > fresh then fresh = at + full / num end
            end
            local later = leased > 0 and ends + seldom().leased_grains(leased, den, missing) / num
            if later and later > fresh then fresh = later end
            new_marks = new_marks or {}
            new_marks[j] = {refunded, eras, leased > 0 and ends or 0, leased, late > 0 and ended or 0, late}
          end
          if still_over then -- the state keeps its rate
            units = full / den * old_den + seldom().scaled_up(-units, old_num, num)
          else
            units, m = full - units, rate
          end
        end
      elseif alg < 3 then -- fixed_window, sliding_window: cost, threshold, period, offset, tick, ticks, slot
        local cost, threshold, period, tick, ticks, slot = n1, n2, n3, n5, n6, n7
        if at > now + SKEW then
          local r = (at - now) % period
          at = now + r - (r > 0 and period or 0)
          repairs = repairs or {}
          repairs[j] = pack('<ddd', at, units, m)
        end
        -- own_start is the start of the window by the limit. The stored window may lie elsewhere, if the limit's align
        -- has changed.
        local own_start = now - (now - n4) % period
        local start, cur, prev, weight = own_start, 0, 0, 0
        if at >= own_start then
          start, cur, prev = at, units, m
        elseif at > own_start - period then
          cur, prev = units, m
        elseif at > own_start - 2 * period then
          prev = units
        end
        if adjust ~= 0 then
          local ahead = adjust_at - start - (adjust_at - start) % period -- of the present window
          local largest = alg == 1 and 2199023255552 or 4294967296 -- the highest count: 2^41 or, to be weighted, 2^32
          if adjust_at == AT_DECISION then ahead = 0 end
          if ahead == 0 then
            cur = seldom().between(0, cur + adjust, largest)
          elseif ahead == -period then
            prev = seldom().between(0, prev + adjust, largest)
          end
        end
        -- While a window of an earlier align is the present one, the whole count of the window before it counts, too.
        local off_grid = start > own_start and (start - own_start) % period ~= 0
        if off_grid then
          weight = prev
        elseif alg == 2 then
          weight = weighted(prev, start, now, period, tick, ticks)
        end
        admits = fits and (cost == 0 or weight + cur + cost <= threshold)
        if admits then
          cur = cur + cost
          if leases then
            if ramp == 1 then -- units of a ramp must be free when it ends
              local since = now > start and now - start or 0
              local ends = start + seldom().between(0, since - since % slot + slot, period)
              if not off_grid then weight = weighted(prev, start, ends, period, tick, ticks) end
            end
            cur = cur + seldom().offer(threshold - weight - cur, least, most, ample, plenty, share)
          end
          at, units, m, fresh = start, cur, prev, start + (alg + 1) * period
        end
      elseif alg == 7 then -- quota: cost, threshold, and four consecutive edges of periods around the caller's time
        if now < n3 or now >= n6 then
          return redis.error_reply('SLUICE the clocks of the caller and of Redis differ by more than a period of a ' ..
            'quota: correct the wrong one')
        end
        local start, ends = n3, n4
        if now >= n5 then start, ends = n5, n6 elseif now >= n4 then start, ends = n4, n5 end
        if at > now + SKEW then
          at, m = start, ends
          repairs = repairs or {}
          repairs[j] = pack('<ddd', at, units, m)
        end
        if now >= m then at, units, m = start, 0, ends end
        if adjust ~= 0 and (adjust_at == AT_DECISION or adjust_at >= at and adjust_at < m) then
          units = seldom().between(0, units + adjust, 2199023255552)
        end
        admits = fits and (n1 == 0 or units + n1 <= n2)
        if admits then
          units = units + n1
          if leases then units = units + seldom().offer(n2 - units, least, most, ample, plenty, share) end
          fresh = m
        end
      elseif alg == 6 then -- leaky_bucket: need, num, period; need and the correction are in grains
        local need, num, period = n1, n2, n3
        if m ~= 0 and at > now + period + SKEW then
          at, units = now + period, 0
          repairs = repairs or {}
          repairs[j] = pack('<ddd', at, units, m)
        end
        if adjust > 0 and now - adjust_at < period then
          if m == 0 or at < now then
            at, units = now, 0
          elseif m ~= num and units > 0 then
            at, units = at + 1, 0
          end
          local r = (adjust + units) % num
          at = at + (adjust + units - r) / num
          at, units, m = at < now + period and at or now + period, r, num
        elseif adjust < 0 and m ~= 0 and at >= now then
          if m ~= num and units > 0 then at, units = at + 1, 0 end
          if adjust <= -MOST_GRAINS then -- all of it
            at, units = now, 0
          else
            local r = -adjust % num
            at, units = at + (adjust + r) / num, units - r
            if units < 0 then at, units = at - 1, units + num end
          end
          if at < now then at, units = now, 0 end
          m = num
        end
        admits = fits and (need == 0 or m == 0 or at < now or (at == now and units == 0))
        if admits then
          if need > 0 then
            units, m = need % num, num
            at = now + (need - units) / num
          end
          fresh = at < now and now or at + 1
        end
      elseif alg == 3 or alg == 4 then
        -- sliding_buckets, sliding_log: cost, threshold, period, width and buckets (0 for a log), number of the set's
        -- key, and of the key of the set that further values share
        local h = seldom()
        local alter, between, units_of = h.alter, h.between, h.units_of
        local cost, threshold, period, width = n1, n2, n3, n4
        local zkey = KEYS[first + (redirected and n7 or n6)]
        if not h.is_set(zkey) then return h.unreadable(zkey, 'is not a sorted set') end
        local stamp, oldest = now, now - period + 1
        if width > 0 then
          stamp = now - now % width
          oldest = stamp - n5 * width
        end
        -- The set's entries are "time:units", by time. The state is their sum and the time until which the set's expiry
        -- is set.
        if m > 0 and call('EXISTS', zkey) == 0 then
          units, m = 0, 0
        elseif m == 0 then -- the pack was deleted, and the entries of the set still count
          for _, e in ipairs(call('ZRANGEBYSCORE', zkey, '-inf', '+inf')) do units = units + units_of(e) end
        end
        local used, latest, more_at, retry_at, must_expire = units, 0, 0, 0, 0
        -- Changes that are not in the set yet: units to add, as {time, units} by time, and units removed at a time.
        local pending, removed, removed_at = {}, 0, nil
        local highest_score = string.format('%.0f', now + period + SKEW)
        local last_time = now -- the latest time that an entry may have
        if units > 0 then
          local far, moved = call('ZRANGEBYSCORE', zkey, string.format('(%.0f', now + period + SKEW), '+inf'), 0
          for _, e in ipairs(far) do moved = moved + units_of(e) end
          if charge and #far > 0 then -- written by a clock that leapt ahead: these units count from now
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
          -- Units are added at their time, or taken off at most what is there at that time. After this, adjust is the
          -- change that is made.
          local time, asked = adjust_at, adjust
          if adjust > 0 and time == AT_DECISION then time = now end
          if width > 0 then time = time - time % width end
          if time >= oldest and time <= now + period then
            if adjust > 0 then
              if adjust > 2199023255552 - units then adjust = units < 2199023255552 and 2199023255552 - units or 0 end
              table.insert(pending, pending[1] and pending[1][1] <= time and 2 or 1, {time, adjust})
              if time > last_time then last_time = time end
            else
              local there, at_time = 0, string.format('%.0f', time)
              for _, e in ipairs(call('ZRANGEBYSCORE', zkey, at_time, at_time)) do there = there + units_of(e) end
              removed, removed_at = there < -adjust and there or -adjust, time
              adjust = -removed
              if pending[1] and pending[1][1] == time then
                local taken = between(0, -asked - removed, pending[1][2])
                pending[1][2], adjust = pending[1][2] - taken, adjust - taken
              end
            end
            used, change = used + adjust, {time, adjust}
          end
        end
        admits = fits and (cost == 0 or used + cost <= threshold)
        if used > 0 then
          for _, u in ipairs(pending) do
            if u[2] > 0 then latest = u[1] end
          end
          local e = call('ZREVRANGEBYSCORE', zkey, highest_score, '-inf', 'WITHSCORES', 'LIMIT', 0, 2)
          local time = tonumber(e[2]) or 0
          if time == removed_at and units_of(e[1]) == removed then time = tonumber(e[4]) or 0 end
          if time > latest then latest = time end
          if latest == 0 then latest = stamp end
          -- more_at is when so many units have expired that one more remains than now, and retry_at is when must_expire
          -- units have expired, so that the cost fits. Both are found by a walk over the entries, the oldest first.
          local free, gone, next_pending = used > threshold and used - threshold + 1 or 1, 0, 1
          if not admits and fits then must_expire = used + cost - threshold end
          local goal = must_expire > free and must_expire or free
          local function expire(at_time, n)
            if gone < free then more_at = at_time end
            if gone < must_expire then retry_at = at_time end
            gone = gone + n
          end
          local function expire_pending()
            if pending[next_pending][2] > 0 then expire(pending[next_pending][1], pending[next_pending][2]) end
            next_pending = next_pending + 1
          end
          local lowest_score = string.format('%.0f', oldest)
          for _, e in ipairs(call('ZRANGEBYSCORE', zkey, lowest_score, highest_score, 'LIMIT', 0, goal + 1)) do
            local time, n = tonumber(string.match(e, '^%d+')) or stamp, units_of(e)
            if time == removed_at then n = n - removed end
            while gone < goal and pending[next_pending] and pending[next_pending][1] <= time do expire_pending() end
            if gone >= goal then break end
            if n > 0 then expire(time, n) end
          end
          while gone < goal and pending[next_pending] do expire_pending() end
        end
        if used < 0 or used % 1 + latest % 1 + more_at % 1 + retry_at % 1 ~= 0 or used > MOST or latest > MOST or
          more_at > MOST or retry_at > MOST then
          return h.unreadable(zkey, 'has entries of another kind')
        end
        summary = summary or {}
        summary[#summary + 1] = pack('<ddddd', used, latest, more_at, retry_at, must_expire)
        if admits then
          local total = cost
          if leases then
            stamp = now + life
            if width > 0 then stamp = stamp - stamp % width end
            if stamp > last_time then last_time = stamp end
            total = total + h.offer(threshold - used - cost, least, most, ample, plenty, share)
          end
          fresh = last_time + period + 2 * width
          after[j] = {
            key = zkey, sum = used + total, armed = m, correction = change, stamp = stamp, units = total,
            oldest = string.format('(%.0f', oldest), matters_until = fresh + SKEW,
          }
          all_text = false
        end
      else
        return redis.error_reply('SLUICE decide.lua has no branch for algorithm ' .. alg)
      end

      if admits then
        if fresh > fresh_at then fresh_at = fresh end
        if not after[j] then after[j] = pack('<ddd', at, units, m) end
      else
        after[j], all_text, limit_admits = false, false, false
      end
      if tier_flags >= 4 then -- the last tier of its limit
        if not limit_admits then
          if tier_flags % 2 == 1 then -- a shadow limit that refuses is not charged
            for l = first_of_limit, j do
              after[l] = false
              if new_marks then new_marks[l] = nil end
            end
            fresh_at = fresh_before
          else
            all_admit = false
          end
        end
        first_of_limit, fresh_before, limit_admits = j + 1, fresh_at, true
      end
    end

    if repairs then
      has_repairs = true
      local parts = {}
      for j = 1, n do parts[j] = repairs[j] or sub(states, 24 * j - 23, 24 * j) end
      states = concat(parts)
    end
    before[i] = pack('<d', (redirected and 1 or 0) + (marks and 2 or 0)) .. states
    if marks then
      local parts = {before[i]}
      for j = 1, n do
        if string.byte(front, 17 * j - 10) == 5 then
          parts[#parts + 1] = pack('<dddddd', unpack(marks[j] or {0, 0, 0, 0, 0, 0}))
        end
      end
      before[i] = concat(parts)
    end
    packs[i] = {
      key, front, n, states, armed, records, after, all_text, fresh_at, marks, new_marks, repairs,
      not redirected and set,
    }
  end

  if charge and all_admit and full_key then
    return redis.error_reply('SLUICE full: ' .. full_key .. ' would keep more than ' .. MAX_RECORDS ..
      ' records of limits that this request does not name; they are dropped when they make no difference any more')
  end
  if charge and (all_admit or has_repairs and not full_key) then
    for i = 1, pack_count do
      local key, front, n, states, armed, records, after, all_text, fresh_at, marks, new_marks, repairs, set =
        unpack(packs[i], 1, 13)
      local matters_until, ttl = all_admit and fresh_at + SKEW or 0, nil -- 0: no tier is charged, the pack stays
      if repairs and matters_until < now + 60000000 then matters_until = now + 60000000 end
      if matters_until > 0 then
        -- for twice as long as needed, so that it is set about once per window and not at each charge
        if armed < matters_until then
          armed = 2 * matters_until - now
          armed = armed - armed % 1 + 60000000
          if armed > MOST then armed = MOST end
          ttl = math.ceil((armed - now) / 1000)
        end
        if marks or new_marks then
          records = seldom().mark_records(front, n, all_admit and after, marks, new_marks, armed) .. records
        end
        if all_admit then
          if not all_text then seldom().finish_states(after, n, states, now) end
          states = concat(after, '', 1, n)
        end
        local value = front .. pack('<d', armed) .. states .. records
        if not ttl then
          call('SET', key, value, 'KEEPTTL')
        else
          call('SET', key, value, 'PX', ttl)
          -- A key of another kind is left alone here: the next decision on a value without a pack returns the error.
          if set and seldom().is_set(set) then
            call('ZREMRANGEBYSCORE', set, '-inf', now)
            call('ZADD', set, string.format('%.0f', armed), key)
            call('PEXPIRE', set, 2 * ttl)
          end
        end
      end
    end
  end
  local reply = pack('<dd', now, all_admit and 1 or 0) .. concat(before) .. (summary and concat(summary) or '')
  if reply_key and all_admit then call('SET', reply_key, reply, 'PX', REPLY_KEPT_FOR) end
  return reply
end
