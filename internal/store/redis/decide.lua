-- One decision over all limits of an owner: all of them are charged, or none. See package redis for the layout, and
-- package limit for the algorithms, which are the same here to the unit: integers below 2^53 only, no rounding.
-- ARGV[1] holds doubles, ARGV[2] their format, ARGV[3] the tiers' ids; wire.go writes them and reads the reply, which is
-- the states before the charge: the core evaluates them once more.
-- This script knows every case. The usual ones have a script each that is about three times as fast: see shape.go.
local sunpack, pack, sub, rep, fmod, call = struct.unpack, struct.pack, string.sub, string.rep, math.fmod, redis.call
local SKEW = 5000000
local A = {sunpack(ARGV[2], ARGV[1])}
local ids = ARGV[3]
local now, charge, npacks = A[1], A[2], A[3]
if now < 0 then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

local WIDTH = {2, 3, 2, 2, 2, 2, 3, [133] = 2} -- doubles of each algorithm's state, and of what a bucket was refunded
local states, fresh, packs = {}, {}, {}
local na, nb, nc, nfresh, stamped = {}, {}, {}, {}, nil
local admitted, refused, repaired = true, nil, nil
local tier, P, redirects, before, summary = 0, 3 + 6 * npacks, {}, '', ''
local joined, shared = {}, {} -- values that this request adds to each set, and counters of all others that it uses

-- What cannot be read is an error, but for a minute only: it is in our place, and must not shut a tenant out for good.
local function unreadable(key, why)
  call('PEXPIRE', key, 60000, 'LT')
  return redis.error_reply('SLUICE ' .. key .. ' ' .. why .. '; it is dropped in a minute')
end

-- parse fills the tables with the records of a pack, by id, and returns what its expiry is armed until.
local function parse(value, rates, at_, n_, m_, order)
  local magic, total = sunpack('<c4H', value)
  assert(magic == 'SLU1')
  local q, armed = 7 + 25 * total, 0
  armed, q = sunpack('<d', value, q)
  local function number(v)
    assert(v == math.floor(v) and v >= -9007199254740992 and v <= 9007199254740992)
    return v
  end
  local function record(id, rate)
    local alg, a, n, m = string.byte(id), 0, 0, nil
    assert(WIDTH[alg])
    a, n, q = sunpack('<dd', value, q)
    if WIDTH[alg] == 3 then m, q = sunpack('<d', value, q) end
    order[#order + 1], rates[id], at_[id], n_[id], m_[id] = id, number(rate), number(a), number(n), m and number(m)
  end
  for j = 0, total - 1 do record(sub(value, 7 + 25 * j, 23 + 25 * j), (sunpack('<d', value, 24 + 25 * j))) end
  while q <= #value do
    local id, rate
    id, rate, q = sunpack('<c17d', value, q)
    record(id, rate)
  end
  return number(armed)
end

-- units is what an entry of a sorted set counts. One that is not ours counts nothing.
local function units_of(e) return tonumber(string.match(e, '^%d+:(%d+)$')) or 0 end

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
  redirects[i] = redirected and 1 or 0
  -- Every record of the pack by its id: rate and state. Ours go to the front, and behind them what is kept for limits
  -- that may come back, and the refunds.
  local mine, armed = sub(ids, 25 * tier + 1, 25 * (tier + n)), 0
  local rates, at_, n_, m_, order = {}, {}, {}, {}, {}
  if value then
    local fine
    fine, armed = pcall(parse, value, rates, at_, n_, m_, order)
    if not fine then return unreadable(key, 'is not a pack of this layout') end
  end
  local st, refunds = {}, {}
  for j = 1, n do
    local id = sub(mine, 25 * j - 24, 25 * j - 8)
    local alg, m = string.byte(id), m_[id] or 0
    if (alg == 5 or alg == 6) and at_[id] and at_[id] ~= 0 then m = rates[id] end
    if alg == 3 or alg == 4 then
      st[3 * j - 2], st[3 * j - 1], st[3 * j] = 0, n_[id] or 0, at_[id] or 0
    else
      st[3 * j - 2], st[3 * j - 1], st[3 * j] = at_[id] or 0, n_[id] or 0, m
    end
    if alg == 5 then
      local r = '\133' .. sub(id, 2)
      if at_[r] then refunds[j] = {at_[r], n_[r]} end
    end
    rates[id] = nil
  end
  local behind, kept = '', 0
  for _, id in ipairs(order) do
    if rates[id] and kept < 64 then
      kept, behind = kept + 1, behind .. pack('<c17ddd', id, rates[id], at_[id], n_[id])
      if WIDTH[string.byte(id)] == 3 then behind = behind .. pack('<d', m_[id]) end
    end
  end

  local dirty = false
  for j = 1, n do
    tier = tier + 1
    local alg, flags = A[P + 1], A[P + 2]
    local x, y, z = 3 * j - 2, 3 * j - 1, 3 * j
    local at, units, m = st[x], st[y], st[z]
    local admits = false
    if alg == 5 then -- token_bucket: need, num, den, full, fullin, rate, period
      local num, den, full = A[P + 5], A[P + 6], A[P + 7]
      if m == 0 then
        at, units = now, full
      else
        if at > now + SKEW then
          at, st[x], dirty = now, now, true
        end
        if m ~= A[P + 9] then
          -- The level in 1/den units, rounded down, by long division: the product passes 2^53.
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
            units = whole * den + q
          end
        end
        if now > at then
          units = units + (now - at) * num -- exact below full; beyond, it is cut
          at = now
        end
        if units > full then units = full end
      end
      admits = flags < 2 and units >= A[P + 4]
      if admits then
        units = units - A[P + 4]
        na[tier], nb[tier], nc[tier], nfresh[tier] = at, units, A[P + 9], at + (full - units) / num
      end
    elseif alg < 3 then -- fixed_window, sliding_window: cost, threshold, period, offset, tick, ticks
      local cost, period, offset = A[P + 4], A[P + 6], A[P + 7]
      if at > now + SKEW then
        local r = fmod(at - now, period)
        at = at - (at - now - r) - (r > 0 and period or 0)
        st[x], dirty = at, true
      end
      local r = fmod(now - offset, period)
      if r < 0 then r = r + period end
      local start, cur, prev, weighted = now - r, 0, 0, 0
      if at >= start then
        start, cur, prev = at, units, m
      elseif at >= start - period then
        prev = units
      end
      if alg == 2 then
        local left, tick, ticks = start + period - now, A[P + 8], A[P + 9]
        if left > period then left = period elseif left < 0 then left = 0 end
        r = fmod(left, tick)
        weighted = prev * ((left - r) / tick + (r > 0 and 1 or 0))
        r = fmod(weighted, ticks)
        weighted = (weighted - r) / ticks + (r > 0 and 1 or 0)
      else
        prev = 0
      end
      admits = flags < 2 and weighted + cur + cost <= A[P + 5]
      if admits then na[tier], nb[tier], nc[tier], nfresh[tier] = start, cur + cost, prev, start + 2 * period end
    elseif alg == 7 then -- quota: cost, threshold, and four edges around the caller's now
      local e = P + 6
      while e < P + 9 and now >= A[e + 1] do e = e + 1 end
      if now < A[P + 6] or e == P + 9 then return redis.error_reply('SLUICE clocks differ by more than a period of a quota') end
      if at > now + SKEW then
        at, m = A[e], A[e + 1]
        st[x], st[z], dirty = at, m, true
      end
      if (m == 0 and units == 0) or now >= m then at, units, m = A[e], 0, A[e + 1] end
      admits = flags < 2 and units + A[P + 4] <= A[P + 5]
      if admits then na[tier], nb[tier], nc[tier], nfresh[tier] = at, units + A[P + 4], m, m end
    elseif alg == 6 then -- leaky_bucket: need, num, period
      local need, num, period = A[P + 4], A[P + 5], A[P + 6]
      if m ~= 0 and at > now + period + SKEW then
        at, units = now + period, 0
        st[x], st[y], dirty = at, units, true
      end
      admits = flags < 2 and (m == 0 or at < now or (at == now and units == 0))
      if admits then
        local r = fmod(need, num)
        at = now + (need - r) / num
        na[tier], nb[tier], nc[tier], nfresh[tier] = at, r, num, at + 1
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
      if m > 0 and call('EXISTS', zkey) == 0 then units, m = 0, 0 end
      local used, latest, retry, over = units, 0, 0, 0
      local ahead, last = 0, string.format('%.0f', now + period + SKEW) -- units that a look sees at now, and may not move
      if units > 0 then
        local far = call('ZRANGEBYSCORE', zkey, string.format('(%.0f', now + period + SKEW), '+inf')
        if charge == 0 then
          for _, e in ipairs(far) do ahead = ahead + units_of(e) end
        elseif #far > 0 then -- stamped by a clock that leapt ahead: they count from now
          for _, e in ipairs(call('ZRANGEBYSCORE', zkey, stamp, stamp)) do far[#far + 1] = e end
          for _, e in ipairs(far) do
            ahead = ahead + units_of(e)
            call('ZREM', zkey, e)
          end
          call('ZADD', zkey, string.format('%.0f', stamp), string.format('%.0f:%.0f', stamp, ahead))
          ahead = 0
        end
        for _, e in ipairs(call('ZRANGEBYSCORE', zkey, '-inf', string.format('(%.0f', oldest))) do
          used = used - units_of(e)
        end
      end
      admits = flags < 2 and used + cost <= A[P + 5]
      if used > 0 then
        latest = tonumber(call('ZREVRANGEBYSCORE', zkey, last, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]) or stamp
        if ahead > 0 and latest < stamp then latest = stamp end
        if not admits and flags < 2 then
          over = used + cost - A[P + 5]
          local left = over
          for _, e in ipairs(call('ZRANGEBYSCORE', zkey, string.format('%.0f', oldest), last, 'LIMIT', 0, over)) do
            local time = tonumber(string.match(e, '^%d+')) or stamp
            if ahead > 0 and time > stamp then left, retry, ahead = left - ahead, stamp, 0 end
            if left <= 0 then break end
            left, retry = left - units_of(e), time
            if left <= 0 then break end
          end
          if left > 0 and ahead > 0 then retry = stamp end
        end
      end
      summary = summary .. pack('<dddd', used, latest, retry, over)
      if admits then
        stamped = stamped or {}
        stamped[tier] = {zkey, stamp, cost, string.format('(%.0f', oldest), period + 2 * width}
        na[tier], nb[tier], nc[tier], nfresh[tier] = 0, used + cost, m, now + period + 2 * width
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
    P = P + 10
  end
  repaired = repaired or dirty
  for j = 1, n do
    local r = refunds[j]
    before = before .. pack('<ddddd', st[3 * j - 2], st[3 * j - 1], st[3 * j], r and r[1] or 0, r and r[2] or 0)
  end
  states[i], fresh[i] = st, dirty and now + 60000000 or 0
  packs[i] = {key, armed, mine, behind, redirected, refunds}
end

if charge == 1 and (admitted or repaired) then
  tier, P = 0, 3 + 6 * npacks
  for i = 1, npacks do
    local pk, st, base, until_ = packs[i], states[i], 6 * i - 3, fresh[i]
    local n = A[base + 2]
    for j = 1, n do
      tier = tier + 1
      if admitted and nc[tier] and not (A[P + 2] % 2 == 1 and refused and refused[A[P + 3]]) then
        local s = stamped and stamped[tier]
        if s then
          call('ZREMRANGEBYSCORE', s[1], '-inf', s[4])
          local total = s[3]
          for _, e in ipairs(call('ZRANGEBYSCORE', s[1], s[2], s[2])) do
            total = total + units_of(e)
            call('ZREM', s[1], e)
          end
          call('ZADD', s[1], string.format('%.0f', s[2]), string.format('%.0f:%.0f', s[2], total))
          if nc[tier] < now + s[5] + SKEW then
            nc[tier] = now + 2 * s[5] + 60000000
            call('PEXPIRE', s[1], math.ceil((nc[tier] - now) / 1000))
          end
        end
        if pk[6][j] and st[3 * j] ~= nc[tier] then
          -- Refunded at another rate: receipts from before give nothing, so the next era of refunds begins.
          local q = string.find(pk[4], '\133' .. sub(pk[3], 25 * j - 23, 25 * j - 8), 1, true)
          pk[4] = sub(pk[4], 1, q + 32) .. pack('<d', pk[6][j][2] + 1) .. sub(pk[4], q + 41)
        end
        st[3 * j - 2], st[3 * j - 1], st[3 * j] = na[tier], nb[tier], nc[tier]
        if nfresh[tier] + SKEW > until_ then until_ = nfresh[tier] + SKEW end
      end
      P = P + 10
    end
    if until_ > 0 then
      local armed, ttl = pk[2], nil
      if armed < until_ then -- for twice as long as needed, so that it is done about once a window and not once a charge
        armed = math.floor(now + 2 * (until_ - now)) + 60000000
        ttl = math.ceil((armed - now) / 1000)
      end
      local parts = {pack('<c4H', 'SLU1', n), pk[3], pack('<d', armed)}
      for j = 1, n do
        local alg = string.byte(pk[3], 25 * j - 24)
        if (alg == 5 or alg == 6) and st[3 * j] ~= 0 then -- not charged: what it holds is counted in its old rate
          parts[2] = sub(parts[2], 1, 25 * j - 8) .. pack('<d', st[3 * j]) .. sub(parts[2], 25 * j + 1)
        end
        if WIDTH[alg] == 3 then
          parts[j + 3] = pack('<ddd', st[3 * j - 2], st[3 * j - 1], st[3 * j])
        elseif alg == 3 or alg == 4 then
          parts[j + 3] = pack('<dd', st[3 * j], st[3 * j - 1])
        else
          parts[j + 3] = pack('<dd', st[3 * j - 2], st[3 * j - 1])
        end
      end
      parts[n + 4] = pk[4]
      local value = table.concat(parts)
      if ttl then
        call('SET', pk[1], value, 'PX', ttl)
        if A[base + 3] == 1 and not pk[5] then
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
return pack('<dd' .. rep('d', npacks), now, admitted and 1 or 0, unpack(redirects)) .. before .. summary
