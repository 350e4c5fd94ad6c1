package redis

import (
	"fmt"
	"strings"
	"sync"

	"github.com/sluicelimits/sluice/internal/limit"
)

// The shape of requests is what they have in common so that one script can serve them: how many packs they have, and
// the algorithms in each. Its script is written out for exactly these, with a local for each number and no table,
// closure or loop, because those are most of what a script costs: decide.lua takes three times as long. What is out of
// the usual (a first use of a limit or a value, a changed rate, a clock that leapt, a bucket of which units are leased
// or were refunded among others, an expiry that is to be armed for records behind the front, logs and buckets) makes it
// answer 0, having done nothing, and decide.lua is asked instead. It is asked for leases at once.
const (
	maxShapes     = 256 // remembered; the rest use decide.lua
	maxShapeTiers = 10  // Lua has 200 locals

	maxBehind = 4096    // bytes of a pack behind the tiers in front; the script copies and sends them
	maxPack   = 1 << 16 // bytes of a pack in which the script looks for records
)

var shapes struct {
	sync.RWMutex
	byKey map[string]*script
}

// shapeOf returns the script for the shape of the question, or nil where there is none. q.shape holds its key.
func (q *question) shapeOf() *script {
	if len(q.shape) == 0 {
		return nil
	}
	shapes.RLock()
	s, ok := shapes.byKey[string(q.shape)]
	full := len(shapes.byKey) >= maxShapes
	shapes.RUnlock()
	if ok || full {
		return s
	}
	key := string(q.shape)
	s = newScript(shapeScript(key))
	shapes.Lock()
	defer shapes.Unlock()
	if shapes.byKey == nil {
		shapes.byKey = make(map[string]*script)
	}
	shapes.byKey[key] = s
	return s
}

// encodeShape writes the arranged request for the script of its shape, and the shape: for each pack "|", "=" if its
// limit has values, and for each limit of it "," and its tiers' algorithms as digits, with "s" behind those of a
// shadow. It reports false where there is no script for such a request.
func (q *question) encodeShape() bool {
	q.reset()
	q.shape = q.shape[:0]
	q.add(q.clock, asInt(q.charge))
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
			if tiers++; of(t).inSet || tiers > maxShapeTiers {
				return false
			}
			q.addID(t)
			q.addShapeTier(c, t)
			q.shape = append(q.shape, '0'+byte(t.Algorithm))
		}
		if l.Mode == limit.Shadow {
			q.shape = append(q.shape, 's')
		}
	}
	q.heads = append(q.heads, len(q.ids))
	return tiers > 0
}

// shapeArgs are the arguments for the script that encodeShape wrote, with room for two in front.
func (q *question) shapeArgs() []any {
	q.argsBegin()
	start := 0
	for i, end := range q.heads {
		q.argument(i+1, q.ids[start:end])
		start = end
	}
	return q.args
}

func (q *question) beginPack(c *limit.Charge, l *limit.Limit) {
	q.shape = append(q.shape, '|')
	if c.Value.Kind != limit.NoValue {
		q.shape = append(q.shape, '=')
	}
	q.keys = appendPackKey(q.keys, q.prefix, l, c.Value)
	q.key()
	if len(q.ids) > 0 {
		q.heads = append(q.heads, len(q.ids))
	}
	n := len(l.Tiers)
	if c.Value.Kind == limit.NoValue {
		n = q.shared
	}
	q.ids = append(append(q.ids, version...), byte(n), byte(n>>8))
}

func (q *question) addShapeTier(c *limit.Charge, t *limit.Tier) {
	p := t.Params(q.req.Owner)
	cost, need := c.Cost, c.Cost*p.Den
	if cost > t.Capacity() { // never: more than any state can admit, and the product might pass 2^53
		cost, need = neverFits, neverFits
	}
	of(t).shape(q, t, p, cost, need)
}

// neverFits is above every level and threshold.
const neverFits = 1 << 52

// shapeScript writes the script of a shape. ARGV[1] holds the numbers, and ARGV[1+i] the head of pack i: its version,
// the number of its tiers, and their ids. The script takes a pack whose tiers in front are these, or a pack of limits
// that are per tenant with no tier in front, in which it looks for each record. The reply is, in doubles, twice the
// time and one more if it admits, and the length of each pack but the last; then the packs as they were before, with
// these tiers in front.
func shapeScript(key string) string {
	var names, head, eval, check, shadows, ends, save strings.Builder
	var lengths, packs []string
	var kinds []*algorithm
	names.WriteString("now, charge")
	tier := 0
	for p, pack := range strings.Split(key[1:], "|") {
		valued := strings.HasPrefix(pack, "=")
		first := tier + 1
		for g, l := range strings.Split(strings.TrimPrefix(pack, "=")[1:], ",") {
			shadow := strings.HasSuffix(l, "s")
			var oks []string
			for _, digit := range strings.ReplaceAll(l, "s", "") {
				tier++
				a := &algorithms[digit-'0']
				kinds = append(kinds, a)
				for _, n := range a.params {
					fmt.Fprintf(&names, ", %s%d", n, tier)
				}
				eval.WriteString(strings.ReplaceAll(a.lua, "#", fmt.Sprint(tier)))
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
		writePack(&head, &ends, &save, p+1, first, tier, kinds, valued)
		lengths = append(lengths, fmt.Sprintf(", #p%d", p+1))
		packs = append(packs, fmt.Sprintf("p%d", p+1))
	}
	numbers := 2
	for _, a := range kinds {
		numbers += len(a.params)
	}
	return "local unpack, pack, fmod, call = struct.unpack, struct.pack, math.fmod, redis.call\n" +
		"local sub, find = string.sub, string.find\n" +
		"local o -- where the records lie, if no tier is in front; o[1] is the pack then\n" +
		"local " + names.String() + " = unpack('" + format(numbers) + "', ARGV[1])\n" +
		"if now < 0 then\n  local t = call('TIME')\n  now = t[1] * 1000000 + t[2]\nend\n" +
		"local far = now + 5000000\n" + head.String() + eval.String() +
		"local ok = true" + check.String() + "\n" +
		"if ok and charge == 1 then\n" + shadows.String() + ends.String() + save.String() + "end\n" +
		"return pack('" + format(len(packs)) + "', 2 * now + (ok and 1 or 0)" + strings.Join(lengths[:len(packs)-1], "") + ") .. " +
		strings.Join(packs, " .. ") + "\n"
}

// writePack writes how pack p, with the tiers first to last, is read and written. A pack that is not there is left to
// decide.lua, which knows what the first use of a limit or of a value needs.
func writePack(head, ends, save *strings.Builder, p, first, last int, kinds []*algorithm, valued bool) {
	n := last - first + 1
	size := 6 + idBytes*n
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
	all, most := strings.Join(states, ", "), least+maxBehind
	if !valued {
		most = maxPack
	}
	fmt.Fprintf(head, "local p%d, e%d, armed%d, %s = redis.pcall('GET', KEYS[%d])\n", p, p, p, all, p)
	fmt.Fprintf(head, "if not p%d or #p%d < 14 or #p%d > %d then return 0 end\n", p, p, p, most)
	fmt.Fprintf(head, "if #p%d >= %d then e%d, armed%d, %s = unpack('%s', p%d) end\n", p, least, p, p, all, layout, p)
	fmt.Fprintf(ends, "e%d = f%d\n", p, first)
	for i := first + 1; i <= last; i++ {
		fmt.Fprintf(ends, "if f%d > e%d then e%d = f%d end\n", i, p, p, i)
	}
	fmt.Fprintf(ends, "e%d = e%d + 5000000\n", p, p)
	if valued {
		fmt.Fprintf(head, "if e%d ~= ARGV[%d] then return 0 end\n", p, p+1)
		fmt.Fprintf(ends, "if armed%d < e%d then return 0 end\n", p, p) // the set of values keeps in step with its expiry
	} else {
		fmt.Fprintf(head, "if e%d ~= ARGV[%d] then\n", p, p+1)
		fmt.Fprintf(head, "  if sub(p%d, 1, 6) ~= '%s\\0\\0' then return 0 end\n", p, version)
		fmt.Fprintf(head, "  o, armed%d = {p%d}, unpack('<d', p%d, 7)\n", p, p, p)
		for i := first; i <= last; i++ {
			writeFind(head, p, i-first, kinds[i-1], states[i-first])
		}
		fmt.Fprintf(head, "  p%d = ARGV[%d] .. pack('<d%s', armed%d, %s)\n", p, p+1, strings.Repeat("d", doubles), p, all)
		fmt.Fprintf(head, "elseif #p%d > %d then\n  return 0\nend\n", p, least+maxBehind)
		// Records behind the front are dropped by decide.lua when it arms the expiry.
		fmt.Fprintf(ends, "if armed%d < e%d and (o or #p%d > %d) then return 0 end\n", p, p, p, least)
	}
	fmt.Fprintf(save, "if e%d > 5000000 then\n", p)
	if !valued {
		save.WriteString("  if o then\n    local x = o[1]\n")
		for i := first; i <= last; i++ {
			width := kinds[i-1].width
			at, values := fmt.Sprintf("o[%d]", i-first+2), fmt.Sprintf("armed%d, %s", p, after[i-first])
			fmt.Fprintf(save, "    x = sub(x, 1, %s + %d) .. pack('<d%s', %s) .. sub(x, %s + %d)\n",
				at, idBytes-1, strings.Repeat("d", width), values, at, behindBytes+8*width)
		}
		fmt.Fprintf(save, "    call('SET', KEYS[%d], x, 'KEEPTTL')\n  else\n", p)
	}
	fmt.Fprintf(save, `  local x = #p%[1]d > %[4]d and sub(p%[1]d, %[4]d + 1) or ''
  if armed%[1]d < e%[1]d then
    armed%[1]d = math.floor(now + 2 * (e%[1]d - now)) + 60000000
    call('SET', KEYS[%[1]d], pack('%[2]s', ARGV[%[5]d], armed%[1]d, %[3]s) .. x, 'PX', math.ceil((armed%[1]d - now) / 1000))
  else
    call('SET', KEYS[%[1]d], pack('%[2]s', ARGV[%[5]d], armed%[1]d, %[3]s) .. x, 'KEEPTTL')
  end
`, p, layout, strings.Join(after, ", "), least, p+1)
	if !valued {
		save.WriteString("  end\n")
	}
	save.WriteString("end\n")
}

// writeFind writes how the record of tier n of pack p, from 0, is found where no tier is in front. A bucket that has marks
// is left to decide.lua.
func writeFind(head *strings.Builder, p, n int, a *algorithm, state string) {
	at, width := fmt.Sprintf("o[%d]", n+2), a.width
	fmt.Fprintf(head, "  e%d = sub(ARGV[%d], %d, %d)\n", p, p+1, 7+idBytes*n, 6+idBytes*(n+1))
	fmt.Fprintf(head, "  %s = find(o[1], e%d, 15, true)\n", at, p)
	fmt.Fprintf(head, "  if not %s or %s + %d > #o[1] then return 0 end\n", at, at, behindBytes+8*width-1)
	if a.marked {
		fmt.Fprintf(head, "  e%d = sub(e%d, 2, 17)\n", p, p)
		fmt.Fprintf(head, "  if find(o[1], e%[1]d, 15, true) ~= %[2]s + 1 or find(o[1], e%[1]d, %[2]s + 18, true) then\n", p, at)
		head.WriteString("    return 0\n  end\n")
	}
	fmt.Fprintf(head, "  %s = unpack('<%s', o[1], %s + %d)\n", state, strings.Repeat("d", width), at, behindBytes)
}
