-- shared makes the functions that decide.lua and settle.lua have in common. scripts.go puts this file before them.
local function shared()
  local f, call = {}, redis.call

  -- leased_grains returns how many grains of a bucket are leased: no more than what is missing, as in package limit.
  function f.leased_grains(units, den, missing)
    return units > (missing - missing % den) / den and missing or units * den
  end

  -- unreadable returns the error for a key that cannot be read. It makes the key expire within a minute, so that the
  -- key does not lock the owner out for good.
  function f.unreadable(key, why)
    call('PEXPIRE', key, 60000, 'LT')
    return redis.error_reply('SLUICE unreadable: ' .. key .. ' ' .. why .. '; it is dropped in a minute')
  end

  -- foreign returns the error for a pack that has another version, or is no pack. A pack of another version may hold
  -- charges, so it stays unchanged: an operator decides about it.
  function f.foreign(key, version)
    if string.sub(version, 1, 3) ~= 'SLU' then return f.unreadable(key, 'is not a pack') end
    return redis.error_reply('SLUICE unreadable: ' .. key .. ' holds a pack of version ' ..
      string.format('%q', version) .. ', which this release of Sluice does not read, and so does not take for ' ..
      'empty; wait until the key expires, or delete it')
  end

  -- is_set reports whether a key can be used as a sorted set: it holds one, or nothing.
  function f.is_set(key)
    local t = call('TYPE', key).ok
    return t == 'zset' or t == 'none'
  end

  -- units_of returns the units of an entry of a sorted set. An entry of another form than "time:units" counts 0.
  function f.units_of(e) return tonumber(string.match(e, '^%d+:(%d+)$')) or 0 end

  -- alter adds units, which may be below zero, to the entry of a time. It adds the new entry before it removes the old
  -- one: a set that is empty in between loses its expiry.
  function f.alter(key, time, units)
    local text = string.format('%.0f', time)
    local old = call('ZRANGEBYSCORE', key, text, text)
    for _, e in ipairs(old) do units = units + f.units_of(e) end
    local new = string.format('%s:%.0f', text, units)
    if units > 0 then call('ZADD', key, text, new) end
    for _, e in ipairs(old) do
      if e ~= new or units <= 0 then call('ZREM', key, e) end
    end
  end

  return f
end
