package redis_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/store/memory"
	"github.com/sluicelimits/sluice/internal/store/redis"
	"github.com/sluicelimits/sluice/internal/store/redis/redistest"
)

// Random charges, looks, refunds, changed limits and leaps of the clock get the same answers from Redis as from memory,
// over all algorithms, several packs, shadows, and more values than a limit keeps apart; and a look changes no key.
func TestLikeMemory(t *testing.T) {
	server := redistest.Start(t)
	s := openAt(t, redis.Config{Addrs: []string{server.Addr}})
	var shaped, general int
	s.OnAnswer(func(g bool) {
		if g {
			general++
		} else {
			shaped++
		}
	})
	seed := uint64(time.Now().UnixNano())
	for i := range uint64(120) {
		s.SetSpace(newSpace())
		p := newPair(t, s, server.Client(t), seed+i)
		p.run()
		if t.Failed() {
			t.Fatalf("seed %d:\n%s", seed+i, strings.Join(p.trace, "\n"))
		}
	}
	if shaped < 100 || general < 100 {
		t.Errorf("scripts of shapes answered %d times, decide.lua %d times: one is hardly tested", shaped, general)
	}
}

// pair is one script on two stores.
type pair struct {
	*testing.T
	ours   *redis.Store
	model  *memory.Store
	admin  *goredis.Client
	r      *rand.Rand
	now    time.Time
	limits []limit.Limit
	built  []*limit.Limit
	made   [][2]*limit.Receipt
	trace  []string
}

func newPair(t *testing.T, s *redis.Store, admin *goredis.Client, seed uint64) *pair {
	model, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{T: t, ours: s, model: model, admin: admin, r: rand.New(rand.NewPCG(seed, 1)), now: noon.Add(time.Duration(seed%1e9) * time.Hour % (1e4 * time.Hour))}
	algorithms := limit.Algorithms()
	for i := 0; i < 3+p.r.IntN(4) || len(p.built) == 0; i++ {
		l := limit.Limit{ID: fmt.Sprint("l", i), MaxCost: 12, MaxValues: 2, Scoped: p.r.IntN(3) == 0}
		if p.r.IntN(3) == 0 {
			l.Per = "subject"
		}
		if p.r.IntN(4) == 0 {
			l.Mode = limit.Shadow
		}
		l.AlignOwner = p.r.IntN(3) == 0
		for j := range 1 + p.r.IntN(2) {
			tier := limit.Tier{Algorithm: algorithms[p.r.IntN(len(algorithms))], Threshold: 1 + p.r.Int64N(12),
				Period: []time.Duration{time.Second, 7 * time.Millisecond, time.Minute}[(i+j)%3]}
			if tier.Algorithm == limit.Quota {
				tier.Period, tier.Calendar = 0, &limit.Calendar{Every: limit.Day + limit.Every(j), Location: time.UTC, AnchorDay: 1}
			}
			l.Tiers = append(l.Tiers, tier)
		}
		made, err := limit.New(l)
		if err != nil {
			continue // the same algorithm twice
		}
		p.limits, p.built = append(p.limits, l), append(p.built, made)
	}
	return p
}

func (p *pair) run() {
	for range 80 {
		switch n := p.r.IntN(20); {
		case n < 6:
			p.now = p.now.Add(time.Duration(p.r.Int64N(int64([]time.Duration{3 * time.Millisecond, 2 * time.Second, time.Minute, 30 * time.Hour}[p.r.IntN(4)]))))
			p.now = p.now.Truncate(time.Microsecond)
		case n == 6:
			p.now = p.now.Add(-time.Duration(p.r.Int64N(int64(4 * time.Second)))).Truncate(time.Microsecond)
		case n == 7:
			p.change()
		case n == 8:
			p.refund()
		case n < 11:
			p.decide(false)
		default:
			p.decide(true)
		}
		if p.Failed() {
			return
		}
	}
}

func (p *pair) log(format string, args ...any) {
	p.trace = append(p.trace, fmt.Sprintf("%s ", p.now.Format("2006-01-02 15:04:05.000000"))+fmt.Sprintf(format, args...))
}

func (p *pair) decide(charge bool) {
	var charges []limit.Charge
	for _, l := range p.built {
		if p.r.IntN(5) == 0 {
			continue
		}
		c := limit.Charge{Limit: l, Cost: 1 + p.r.Int64N(1+p.r.Int64N(12))}
		if l.Per != limit.PerTenant {
			c.Value = limit.ValueOf(fmt.Sprint("u-", p.r.IntN(2)))
		}
		charges = append(charges, c)
	}
	req := &limit.Request{Owner: acme, Charges: charges}
	var a, b limit.Decision
	stores := []struct {
		store limit.Store
		d     *limit.Decision
	}{{p.ours, &a}, {p.model, &b}}
	before := p.dump(!charge)
	for _, x := range stores {
		call := x.store.Peek
		if charge {
			call = x.store.Decide
		}
		if err := call(context.Background(), req, p.now, x.d); err != nil {
			p.Errorf("%T: %v", x.store, err)
			return
		}
	}
	p.log("charge=%t %s: %t", charge, describe(charges), a.Allowed)
	if after := p.dump(!charge); !maps.Equal(before, after) {
		p.Errorf("a look changes keys: %q before, %q after", before, after)
	}
	if got, want := render(&a), render(&b); got != want {
		p.Errorf("Redis says\n%s\nmemory\n%s", got, want)
	}
	if charge && a.Allowed {
		p.made = append(p.made, [2]*limit.Receipt{a.Receipt(), b.Receipt()})
	}
}

// dump is every key of this script, as the server would write it to a file.
func (p *pair) dump(wanted bool) map[string]string {
	if !wanted {
		return nil
	}
	out := map[string]string{}
	keys, err := p.admin.Keys(p.Context(), "{rl:"+p.ours.Space()+"*").Result()
	if err != nil {
		p.Fatal(err)
	}
	for _, k := range keys {
		if strings.Contains(k, "}refunded:") {
			continue // remembered for as long as the receipt matters, which may end between two looks
		}
		value, err := p.admin.Dump(p.Context(), k).Result()
		if err != nil {
			p.Fatalf("DUMP %q: %v", k, err)
		}
		out[k] = value
	}
	return out
}

func (p *pair) refund() {
	if len(p.made) == 0 {
		return
	}
	r := p.made[p.r.IntN(len(p.made))]
	units := p.r.Int64N(4)
	a, errA := p.ours.Refund(context.Background(), r[0], units, p.now)
	b, errB := p.model.Refund(context.Background(), r[1], units, p.now)
	p.log("refund %d of %d entries: %v", units, len(r[0].Entries()), a.Units)
	if errA != nil || errB != nil || !slices.Equal(a.Units, b.Units) {
		p.Errorf("refund: Redis gives back %v, %v; memory %v, %v", a.Units, errA, b.Units, errB)
	}
}

// change gives a limit another number of units; what is consumed stays.
func (p *pair) change() {
	i := p.r.IntN(len(p.limits))
	l := p.limits[i]
	l.Tiers = slices.Clone(l.Tiers)
	for j := range l.Tiers {
		l.Tiers[j].Threshold = 1 + p.r.Int64N(12)
		if l.Tiers[j].Algorithm == limit.TokenBucket || l.Tiers[j].Algorithm == limit.LeakyBucket {
			// A full bucket may be forgotten or not, which makes a difference when its size changes, and only then.
			l.Tiers[j].Threshold = p.limits[i].Tiers[j].Threshold
		}
	}
	if made, err := limit.New(l); err == nil {
		p.limits[i], p.built[i] = l, made
		p.log("limit %s is changed", l.ID)
	}
}

func describe(charges []limit.Charge) string {
	var out []string
	for _, c := range charges {
		text := fmt.Sprintf("%d of %s %s%s", c.Cost, c.Limit.ID, c.Limit.Mode, c.Value.Text)
		for i := range c.Limit.Tiers {
			t := &c.Limit.Tiers[i]
			text += fmt.Sprintf(" {%s %d/%s}", t.Algorithm, t.Threshold, t.Period)
		}
		out = append(out, text)
	}
	return strings.Join(out, " + ")
}

// render is everything a caller can see of a decision but the receipt's name.
func render(d *limit.Decision) string {
	out := fmt.Sprintf("allowed %t never %t retry %d now %d receipt %d", d.Allowed, d.Never, d.RetryAt, d.Now, len(d.Receipt().Entries()))
	for i := range d.Results {
		r := &d.Results[i]
		out += fmt.Sprintf("\n%s value %v cost %d charged %d admits %t never %t retry %d used %d remaining %d reset %d",
			r.Limit().ID, d.Value(i), r.Cost, r.Charged, r.Admits, r.Never, r.RetryAt, r.Used(), r.Remaining(), r.ResetAt())
	}
	return out
}
