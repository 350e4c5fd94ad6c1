package redis

import (
	"fmt"
	"strings"
	"sync"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// The shape of a request is what a script for it depends on: the packs, and the algorithms of the limits in each.
// scriptOfShape generates one script for each shape that occurs. The script has a local variable for each number and no
// table, closure or loop, because these are most of what a script costs: decide.lua takes three times as long.
//
// A generated script handles the usual case only. It returns 0, having done nothing, in all others: the first use of
// a value, or of a limit in a pack that exists, a changed rate, a clock that
// leapt ahead, a token bucket of which units are leased or (if no tier is in front) were refunded, an expiry that
// must be set while the pack has records, and sliding_log and sliding_buckets. decide.lua is then run instead.
// Requests that lease, and the first use of a pack by this process, run decide.lua at once.
const (
	maxShapeScripts = 256 // scripts kept; requests of further shapes run decide.lua
	maxShapeTiers   = 10  // a Lua function has at most 200 local variables

	maxRecordBytes = 4096 // bytes of records in a pack; the script copies and returns them
	// bytes of a pack without tiers in front, in which the script searches for each record
	maxScatteredPackBytes = 1 << 16
)

var shapeScripts struct {
	sync.RWMutex
	byKey map[string]*script
}

// scriptOfShape returns the script for the shape of the query, or nil if there are too many shapes. q.shape holds the
// shape.
func (q *query) scriptOfShape() *script {
	if len(q.shape) == 0 {
		return nil
	}
	shapeScripts.RLock()
	s, ok := shapeScripts.byKey[string(q.shape)]
	full := len(shapeScripts.byKey) >= maxShapeScripts
	shapeScripts.RUnlock()
	if ok || full {
		return s
	}
	key := string(q.shape)
	source := generateShapeScript(key)
	if s = newScript(source); q.packCount == 1 {
		s.many = newScript(runsMany(source))
	}
	shapeScripts.Lock()
	defer shapeScripts.Unlock()
	if shapeScripts.byKey == nil {
		shapeScripts.byKey = make(map[string]*script)
	}
	shapeScripts.byKey[key] = s
	return s
}

// encodeShape writes the request for the script of its shape, and the shape to q.shape. A shape has for each pack
// "|" and, if its limit has values, "=", or "+" if the script may make the pack; and for each limit of the pack ","
// and the algorithms of its tiers as digits, with "s" at the end if it is a shadow limit. encodeShape reports false
// if there is no script for the request.
func (q *query) encodeShape() bool {
	q.resetArgs()
	q.shape = q.shape[:0]
	q.addNumbers(q.serverNow, boolToInt(q.charges))
	tiers, pack := 0, -1
	for _, i := range q.order {
		c := &q.req.Charges[i]
		l := c.Limit
		if q.packs[i] != pack {
			pack = q.packs[i]
			q.beginPack(c, l)
		}
		q.shape = append(q.shape, ',')
		for j := range l.Tiers {
			t := &l.Tiers[j]
			if tiers++; algorithmOf(t).inSet || tiers > maxShapeTiers {
				return false
			}
			q.addHead(t)
			q.addShapeTier(c, t)
			q.shape = append(q.shape, '0'+byte(t.Algorithm))
		}
		if l.Mode == limit.Shadow {
			q.shape = append(q.shape, 's')
		}
	}
	q.headEnds = append(q.headEnds, len(q.heads))
	return tiers > 0
}

// shapeScriptArgs returns the arguments for a generated script after encodeShape.
func (q *query) shapeScriptArgs() []any {
	q.beginArgs()
	start := 0
	for i, end := range q.headEnds {
		q.addByteArg(i+1, q.heads[start:end])
		start = end
	}
	return q.args
}

// beginPack writes the key and the beginning of the pack of a charge.
func (q *query) beginPack(c *limit.Charge, l *limit.Limit) {
	q.shape = append(q.shape, '|')
	if c.Value.Kind != limit.NoValue {
		q.shape = append(q.shape, '=')
	} else {
		q.shape = append(q.shape, '+')
	}
	q.keys = appendPackKey(q.keys, q.prefix, l, c.Value)
	q.endKey()
	if len(q.heads) > 0 {
		q.headEnds = append(q.headEnds, len(q.heads))
	}
	n := len(l.Tiers)
	if c.Value.Kind == limit.NoValue {
		n = q.sharedTiers
	}
	q.heads = append(append(q.heads, version...), byte(n), byte(n>>8))
}

// addShapeTier writes the numbers of a tier.
func (q *query) addShapeTier(c *limit.Charge, t *limit.Tier) {
	p := t.Params(q.req.Owner)
	cost, need := c.Cost, c.Cost*p.Den
	if cost > t.Capacity() { // the cost is more than any state can admit, and the product might be above 2^53
		cost, need = neverFits, neverFits
	}
	algorithmOf(t).addShapeNumbers(q, t, p, cost, need)
}

// neverFits is a cost that is above every level and threshold, so that a script denies it.
const neverFits = 1 << 52

// generateShapeScript generates the script of a shape. ARGV[1] holds the numbers, and ARGV[1+i] the beginning of pack
// i: its version, the number of its tiers, and their heads. The script handles a pack with just these tiers in front,
// and a pack of limits that are per tenant with no tier in front, in which it searches for each record. The reply
// consists of doubles, namely twice the time (plus one if the script admits) and the length of each pack but the last,
// and then of the packs as they were before, with these tiers in front.
func generateShapeScript(key string) string {
	var names, head, eval, check, shadows, ends, save strings.Builder
	var lengths, packs []string
	var kinds []*algorithm
	names.WriteString("now, charge")
	tier := 0
	for p, pack := range strings.Split(key[1:], "|") {
		valued := strings.HasPrefix(pack, "=")
		first := tier + 1
		for g, l := range strings.Split(strings.TrimLeft(pack, "=+")[1:], ",") {
			shadow := strings.HasSuffix(l, "s")
			var oks []string
			for _, digit := range strings.ReplaceAll(l, "s", "") {
				tier++
				a := &algorithms[digit-'0']
				kinds = append(kinds, a)
				for _, n := range a.shapeParams {
					fmt.Fprintf(&names, ", %s%d", n, tier)
				}
				eval.WriteString(strings.ReplaceAll(a.shapeLua, "#", fmt.Sprint(tier)))
				oks = append(oks, fmt.Sprintf("ok%d", tier))
			}
			if !shadow {
				fmt.Fprintf(&check, " and %s", strings.Join(oks, " and "))
				continue
			}
			fmt.Fprintf(&shadows, "if not (%s) then -- shadow %d\n", strings.Join(oks, " and "), g)
			for i := tier - len(oks) + 1; i <= tier; i++ {
				fmt.Fprintf(&shadows, "  b%d, v%d, f%d = a%d, u%d, 0\n", i, i, i, i, i)
				if kinds[i-1].width == 3 {
					fmt.Fprintf(&shadows, "  w%d = m%d\n", i, i)
				}
			}
			shadows.WriteString("end\n")
		}
		generatePackAccess(&head, &ends, &save, p+1, first, tier, kinds, valued, strings.HasPrefix(pack, "+"))
		lengths = append(lengths, fmt.Sprintf(", #p%d", p+1))
		packs = append(packs, fmt.Sprintf("p%d", p+1))
	}
	numbers := 2
	for _, a := range kinds {
		numbers += len(a.shapeParams)
	}
	return shapeScriptNames +
		"local o -- if no tier is in front: o[1] is the pack, o[i] the position of a record in it\n" +
		"local " + names.String() + " = unpack('" + unpackFormat(numbers) + "', ARGV[1])\n" +
		"if now < 0 then\n  time = time or call('TIME')\n  now = time[1] * 1000000 + time[2]\nend\n" +
		"local far = now + 5000000\n" + head.String() + eval.String() +
		"local ok = true" + check.String() + "\n" + "if ok and charge == 1 then\n" + shadows.String() + ends.String() +
		save.String() + "end\n" + "return pack('" + unpackFormat(len(packs)) + "', 2 * now + (ok and 1 or 0)" +
		strings.Join(lengths[:len(packs)-1], "") + ") .. " +
		strings.Join(packs, " .. ") + "\n"
}

// shapeScriptNames begins each generated script.
const shapeScriptNames = "local unpack, pack, fmod, call = struct.unpack, struct.pack, math.fmod, redis.call\n" +
	"local sub, find = string.sub, string.find\n" +
	"local time -- the server's, once it was asked for\n"

// runsMany returns a script that runs a generated script of one pack for each of its keys. It gets the arguments of the
// first key, then those of the second key, and so on, and replies with an array. What fails for one key is an error in
// its place.
func runsMany(source string) string {
	return shapeScriptNames + "local function one(KEYS, ARGV)\n" + strings.TrimPrefix(source, shapeScriptNames) + `end
local replies = {}
for i = 1, #KEYS do
  local ok, reply = pcall(one, {KEYS[i]}, {ARGV[2 * i - 1], ARGV[2 * i]})
  if not ok and type(reply) ~= 'table' then reply = redis.error_reply('ERR user_script: ' .. tostring(reply)) end
  replies[i] = reply
end
return replies
`
}

// generatePackAccess generates the code that reads and writes pack p, which has the tiers first to last. If the pack
// does not exist, the script makes it if makes is set. Otherwise it declines: only decide.lua counts the values of a
// limit.
func generatePackAccess(
	head, ends, save *strings.Builder, p, first, last int, kinds []*algorithm, valued, makes bool,
) {
	n := last - first + 1
	size := 6 + headBytes*n
	var states, after []string
	doubles := 0
	for i := first; i <= last; i++ {
		names, values := "a%d, u%d", "b%d, v%d"
		numbers := []any{i, i}
		if kinds[i-1].width == 3 {
			names, values = names+", m%d", values+", w%d"
			numbers = append(numbers, i)
		}
		states = append(states, fmt.Sprintf(names, numbers...))
		after = append(after, fmt.Sprintf(values, numbers...))
		doubles += len(numbers)
	}
	layout, least := fmt.Sprintf("<c%dd%s", size, strings.Repeat("d", doubles)), size+8+8*doubles
	all, most := strings.Join(states, ", "), least+maxRecordBytes
	if !valued {
		most = maxScatteredPackBytes
	}
	fmt.Fprintf(head, "local p%d, e%d, armed%d, %s = redis.pcall('GET', KEYS[%d])\n", p, p, p, all, p)
	if makes {
		fmt.Fprintf(head, "if not p%d then\n  p%d, e%d, armed%d, %s = '', ARGV[%d], 0%s\n", p, p, p, p, all, p+1,
			strings.Repeat(", 0", doubles))
		fmt.Fprintf(head, "elseif #p%d < 14 or #p%d > %d then\n  return 0\nend\n", p, p, most)
	} else {
		fmt.Fprintf(head, "if not p%d or #p%d < 14 or #p%d > %d then return 0 end\n", p, p, p, most)
	}
	fmt.Fprintf(head, "if #p%d >= %d then e%d, armed%d, %s = unpack('%s', p%d) end\n", p, least, p, p, all, layout, p)
	fmt.Fprintf(ends, "e%d = f%d\n", p, first)
	for i := first + 1; i <= last; i++ {
		fmt.Fprintf(ends, "if f%d > e%d then e%d = f%d end\n", i, p, p, i)
	}
	fmt.Fprintf(ends, "e%d = e%d + 5000000\n", p, p)
	if valued {
		fmt.Fprintf(head, "if e%d ~= ARGV[%d] then return 0 end\n", p, p+1)
		// if the expiry must be set, decide.lua does it, and updates the set of values
		fmt.Fprintf(ends, "if armed%d < e%d then return 0 end\n", p, p)
	} else {
		fmt.Fprintf(head, "if e%d ~= ARGV[%d] then\n", p, p+1)
		fmt.Fprintf(head, "  if sub(p%d, 1, 6) ~= '%s\\0\\0' then return 0 end\n", p, version)
		fmt.Fprintf(head, "  o, armed%d = {p%d}, unpack('<d', p%d, 7)\n", p, p, p)
		for i := first; i <= last; i++ {
			generateRecordSearch(head, p, i-first, kinds[i-1], states[i-first])
		}
		fmt.Fprintf(head, "  p%d = ARGV[%d] .. pack('<d%s', armed%d, %s)\n", p, p+1, strings.Repeat("d", doubles), p,
			all)
		fmt.Fprintf(head, "elseif #p%d > %d then\n  return 0\nend\n", p, least+maxRecordBytes)
		// Only decide.lua drops records, when it sets the expiry.
		fmt.Fprintf(ends, "if armed%d < e%d and (o or #p%d > %d) then return 0 end\n", p, p, p, least)
	}
	fmt.Fprintf(save, "if e%d > 5000000 then\n", p)
	if !valued {
		save.WriteString("  if o then\n    local x = o[1]\n")
		for i := first; i <= last; i++ {
			width := kinds[i-1].width
			at, values := fmt.Sprintf("o[%d]", i-first+2), fmt.Sprintf("armed%d, %s", p, after[i-first])
			fmt.Fprintf(save, "    x = sub(x, 1, %s + %d) .. pack('<d%s', %s) .. sub(x, %s + %d)\n",
				at, headBytes-1, strings.Repeat("d", width), values, at, recordHeadBytes+8*width)
		}
		fmt.Fprintf(save, "    call('SET', KEYS[%d], x, 'KEEPTTL')\n  else\n", p)
	}
	fmt.Fprintf(save, `  local x = #p%[1]d > %[4]d and sub(p%[1]d, %[4]d + 1) or ''
  if armed%[1]d < e%[1]d then
    armed%[1]d = math.min(math.floor(now + 2 * (e%[1]d - now)) + 60000000, 9007199254740992)
    call('SET', KEYS[%[1]d], pack('%[2]s', ARGV[%[5]d], armed%[1]d, %[3]s) .. x,
      'PX', math.ceil((armed%[1]d - now) / 1000))
  else
    call('SET', KEYS[%[1]d], pack('%[2]s', ARGV[%[5]d], armed%[1]d, %[3]s) .. x, 'KEEPTTL')
  end
`, p, layout, strings.Join(after, ", "), least, p+1)
	if !valued {
		save.WriteString("  end\n")
	}
	save.WriteString("end\n")
}

// generateRecordSearch generates the code that finds the record of tier n (from 0) of pack p if no tier is in front.
// The script declines if a bucket has marks.
func generateRecordSearch(head *strings.Builder, p, n int, a *algorithm, state string) {
	at, width := fmt.Sprintf("o[%d]", n+2), a.width
	fmt.Fprintf(head, "  e%d = sub(ARGV[%d], %d, %d)\n", p, p+1, 7+headBytes*n, 6+headBytes*(n+1))
	fmt.Fprintf(head, "  %s = find(o[1], e%d, 15, true)\n", at, p)
	fmt.Fprintf(head, "  if not %s or %s + %d > #o[1] then return 0 end\n", at, at, recordHeadBytes+8*width-1)
	if a.hasMarks {
		fmt.Fprintf(head, "  e%d = sub(e%d, 2, 17)\n", p, p)
		fmt.Fprintf(head, "  if find(o[1], e%[1]d, 15, true) ~= %[2]s + 1 or find(o[1], e%[1]d, %[2]s + 18, true) "+
			"then\n", p, at)
		head.WriteString("    return 0\n  end\n")
	}
	fmt.Fprintf(head, "  %s = unpack('<%s', o[1], %s + %d)\n", state, strings.Repeat("d", width), at, recordHeadBytes)
}
