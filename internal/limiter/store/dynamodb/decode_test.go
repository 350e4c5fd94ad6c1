package dynamodb

import (
	"encoding/json"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
)

// decoded returns one tier of each algorithm, and the same tiers with numbers that are not round.
func decoded(tb testing.TB) []*limit.Tier {
	var tiers []*limit.Tier
	for _, t := range []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 5, Period: time.Second},
		{Algorithm: limit.SlidingWindow, Threshold: 5, Period: time.Second},
		{Algorithm: limit.SlidingBuckets, Threshold: 5, Period: time.Second, Buckets: 7},
		{Algorithm: limit.TokenBucket, Threshold: 7, Period: 1001 * time.Millisecond},
		{Algorithm: limit.LeakyBucket, Threshold: 7, Period: 1001 * time.Millisecond},
		{Algorithm: limit.Quota, Threshold: 5, Calendar: &limit.Calendar{Every: limit.Month, Location: time.UTC}},
	} {
		l := limittest.MustNew(tb, limit.Limit{ID: "l", Tiers: []limit.Tier{t}})
		tiers = append(tiers, &l.Tiers[0])
	}
	for _, a := range Counted() {
		if !slices.ContainsFunc(tiers, func(t *limit.Tier) bool { return t.Algorithm == a }) {
			tb.Errorf("decoded has no tier of %s: add one", a)
		}
	}
	return tiers
}

// attributes makes an item from JSON: numbers become N as they are written, texts become S, objects M, and everything
// else NULL.
func attributes(raw json.RawMessage) types.AttributeValue {
	text := strings.TrimSpace(string(raw))
	var s string
	var m map[string]json.RawMessage
	switch {
	case strings.HasPrefix(text, "{") && json.Unmarshal(raw, &m) == nil:
		out := map[string]types.AttributeValue{}
		for k, v := range m {
			out[k] = attributes(v)
		}
		return &types.AttributeValueMemberM{Value: out}
	case strings.HasPrefix(text, `"`) && json.Unmarshal(raw, &s) == nil:
		return &types.AttributeValueMemberS{Value: s}
	case text == "null" || text == "true" || text == "false" || strings.HasPrefix(text, "["):
		return &types.AttributeValueMemberNULL{Value: true}
	default:
		return &types.AttributeValueMemberN{Value: text}
	}
}

// FuzzItem guarantees that reading any item ends in an error, or in a state that the core can evaluate and that is
// written back as it was read. A panic would let one bad item stop the process.
func FuzzItem(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"v":1}`, `{"v":3,"ttl":"x"}`, `{"v":3,"ttl":1795344812,"full":1}`,
		`{"v":3,"l/x":{"w":1772445600000000,"n":3}}`,
		`{"v":3,"l/x":{"w":1772445600000000,"n":3,"p":9}}`,
		`{"v":3,"l/x":{"w":1772445600000000,"n":3,"p":9,"o":1772445599000000}}`,
		`{"v":3,"l/x":{"w":1772445600000000,"n":3,"p":9,"o":1772445590000000},"l/y":7}`,
		`{"v":3,"l/x":{"w":1772445600000000,"n":3,"e":1772445700000000}}`,
		`{"v":3,"l/x":{"w":12407119,"s":5,"x":0,"b07dxfj":5}}`,
		`{"v":3,"l/x":{"w":12407119,"s":5,"x":0,"b1zz":2,"b0zz":3}}`,
		`{"v":3,"l/x":{"f":12407119200000000,"t":1772445600000000,"r":7}}`,
		`{"v":3,"l/x":{"f":12407119200000000,"t":0,"r":7,"b":12,"u":1772445600000000}}`,
		`{"v":3,"l/x":{"s":12407119200000003,"r":7}}`,
		`{"v":3,"l/x":{"s":1.2407119200000003E16,"r":7E0}}`,
		`{"v":3,"l/x":{"w":1E400000000,"n":-0}}`,
		`{"v":3,"l/x":{"f":99999999999999999999999999999999999999,"t":-1,"r":1}}`,
	} {
		f.Add([]byte(seed))
	}
	tiers := decoded(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var raw map[string]json.RawMessage
		if json.Unmarshal(data, &raw) != nil {
			return
		}
		item := map[string]types.AttributeValue{}
		for k, v := range raw {
			item[k] = attributes(v)
		}
		v, err := parseItem(item)
		if err != nil {
			return
		}
		for name, counter := range v.counters {
			for _, tier := range tiers {
				p := tier.Params(limit.Owner{})
				st, err := stateOf(tier, &p, counter)
				if err != nil {
					continue
				}
				again, err := stateOf(tier, &p, algorithmOf(tier).encode(&p, &st, 0))
				if err != nil {
					t.Fatalf("%s %q: the counter %v is read; after it is written again it cannot be read: %v",
						tier.Algorithm, name, counter, err)
				}
				if !st.Equal(&again) {
					t.Fatalf("%s %q: the counter %v is read as %+v; after it is written again, as %+v; want the same",
						tier.Algorithm, name, counter, st, again)
				}
				req := &limit.Request{Charges: []limit.Charge{{Limit: tier.Limit(), Cost: 1}}}
				var d limit.Decision
				e := d.BeginChecked(req, 1772445600000000)
				e.Evaluate(0, &st, true)
				e.Settle()
			}
		}
	})
}

// Guarantees that numbers are read with all of their 38 digits: a float in between would round the time of a bucket to
// a quarter of a second.
func TestParseNumber(t *testing.T) {
	for text, want := range map[string]string{
		"0": "0", "-0": "0", "7": "7", "-7": "-7", "00012": "12", "1E3": "1000", "1.5e1": "15", "1.5E+3": "1500",
		"99999999999999999999999999999999999999": "99999999999999999999999999999999999999",
		"":                                       "", "x": "", "0.5": "", "1E-3": "", "1E39": "", "1.23E1": "",
		"1E": "", "1_000": "", "0x10": "", "+": "", " 7": "",
		"999999999999999999999999999999999999999999": "",
	} {
		n, err := parseNumber(&types.AttributeValueMemberN{Value: text})
		switch {
		case want == "" && err == nil:
			t.Errorf("parseNumber(%q) = %s, want an error", text, n)
		case want != "" && (err != nil || n.String() != want):
			t.Errorf("parseNumber(%q) = %v, %v; want %s", text, n, err, want)
		}
	}
}

// FuzzCounterName guarantees that two counters of one item never have the same name, whatever their limits are called
// and however endpoints are spelled.
func FuzzCounterName(f *testing.F) {
	f.Add("a", "a", int64(1), int64(1), 1, 1, "x", "x", false, false)
	f.Add("a", "a", int64(11), int64(1), 1, 11, "=x", "x", true, false)
	f.Add("a", "a.b", int64(10), int64(10), 2, 2, strings.Repeat("e", 25), strings.Repeat("e", 26), true, true)
	f.Fuzz(func(t *testing.T, id1, id2 string, period1, period2 int64, kind1, kind2 int, value1, value2 string,
		shadow1, shadow2 bool) {
		type named struct {
			id, value, identity string
			endpoint            bool
		}
		build := func(id string, period int64, kind int, value string, shadow bool) (named, string, bool) {
			a := limit.Algorithms()[uint(kind)%uint(len(limit.Algorithms()))]
			if algorithms[a] == nil {
				return named{}, "", false
			}
			l := limit.Limit{ID: id, Tiers: []limit.Tier{{Algorithm: a, Threshold: 1,
				Period: time.Duration(period) * time.Millisecond}}}
			if shadow {
				l.Mode = limit.Shadow
			}
			tier := &l.Tiers[0]
			switch {
			case a.HasCalendar():
				tier.Period, tier.Calendar = 0, &limit.Calendar{Every: limit.Month, Location: time.FixedZone(value, 0),
					AnchorDay: 1 + int(uint64(period)%28)}
			case a.HasBuckets():
				tier.Buckets = 1 + int(uint(kind)%100)
			}
			v := limit.Value{}
			if kind%2 == 0 {
				l.Per, v = perEndpoint, limit.ValueOf(value)
			}
			built, err := limit.New(l)
			if err != nil || len(value) > 200 {
				return named{}, "", false
			}
			return named{id, v.Text, built.Tiers[0].Identity(), v.Kind != limit.NoValue}, counterName(&built.Tiers[0],
				v), true
		}
		a, nameA, ok := build(id1, period1, kind1, value1, shadow1)
		b, nameB, ok2 := build(id2, period2, kind2, value2, shadow2)
		if !ok || !ok2 {
			return
		}
		if (a == b) != (nameA == nameB) {
			t.Fatalf("the counter %+v has the name %q, and %+v has %q; want equal names only for equal counters", a,
				nameA, b, nameB)
		}
	})
}

// Guarantees that the name of a bucket's field needs no alias in an expression, and can be read back.
func TestBucketName(t *testing.T) {
	for _, index := range []int64{0, 1, -1, 35, 36, 494_444, 8_862_479_998, -8_862_479_998} {
		name := bucketName(index)
		if got, ok := bucketIndex(name); !ok || got != index {
			t.Errorf("bucketIndex(%q) = %d, %t; want %d", name, got, ok, index)
		}
		if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
			t.Errorf("the field of bucket %d has the name %q, want only letters and digits", index, name)
		}
	}
	for _, name := range []string{"", "b", "b0", "b00", "b01 ", "b0+1", "b10", "b1-1", "b0Z", "c01"} {
		if index, ok := bucketIndex(name); ok && bucketName(index) != name {
			t.Errorf("bucketIndex(%q) = %d, want the index from which the name was made", name, index)
		}
	}
}

// Guarantees that an update changes a copy of the item as DynamoDB changes the item: every assignment reads the fields
// as they were before the update. copiesAreItems compares whole items.
func TestWriteApply(t *testing.T) {
	update := newItemUpdate(itemKey{"p", "s0"})
	counter := update.counterUpdate("a/f1")
	counter.copyField("p", "n", new(big.Int))
	counter.setField("n", big.NewInt(2))
	counter.addOrCreate("k", big.NewInt(5))
	counter.removeField("z")
	before := &itemCopy{counters: map[string]fields{"a/f1": {"n": big.NewInt(9), "p": big.NewInt(1), "z": one},
		"b/f1": {"n": one}}}
	after := update.applyTo(before)
	want := fields{"n": big.NewInt(2), "p": big.NewInt(9), "k": big.NewInt(5)}
	if got := after.counters["a/f1"]; !got.equal(want) {
		t.Errorf("the counter is %v, want %v", got, want)
	}
	if got := before.counters["a/f1"]; len(got) != 3 || got["n"].Int64() != 9 {
		t.Errorf("the update changed the view from before it to %v", got)
	}
}

// Guarantees that the correction is zero while this machine's clock may be right, and ends within a second of the
// service's clock if it is wrong.
func TestServiceClock(t *testing.T) {
	at := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	reply := func(c *serviceClock, local time.Time, ahead time.Duration) {
		service := local.Add(ahead)
		c.observe(service.Truncate(time.Second), local.Add(-5*time.Millisecond), local.Add(5*time.Millisecond))
	}
	for name, test := range map[string]struct{ ahead, least, most time.Duration }{
		"right":            {0, 0, 0},
		"nearly right":     {200 * time.Millisecond, 0, 210 * time.Millisecond},
		"ten minutes late": {10 * time.Minute, 10*time.Minute - time.Second, 10*time.Minute + time.Second},
		"a day ahead":      {-24 * time.Hour, -24*time.Hour - time.Second, -24*time.Hour + time.Second},
	} {
		var c serviceClock
		for i := range 40 {
			reply(&c, at.Add(time.Duration(i)*137*time.Millisecond), test.ahead)
		}
		if got := time.Duration(c.offset()) * time.Microsecond; got < test.least || got > test.most {
			t.Errorf("%s: corrected by %s, want %s to %s", name, got, test.least, test.most)
		}
		reply(&c, at, test.ahead+time.Hour) // one wrong Date header
		if moved := time.Duration(c.offset())*time.Microsecond - test.ahead; moved > 31*time.Minute {
			t.Errorf("%s: one Date header that is wrong by an hour changed the correction by %s", name, moved)
		}
		for range 20 {
			reply(&c, at, test.ahead)
		}
		if got := time.Duration(c.offset())*time.Microsecond - test.ahead; got > 1010*time.Millisecond ||
			got < -1010*time.Millisecond {
			t.Errorf("%s: the corrected clock is wrong by %s after twenty right Date headers", name, got)
		}
	}
}

// Guarantees that a reply which arrives late does not replace a copy that was read after it: the store would deny by an
// item as it was before.
func TestLatestCopyIsKept(t *testing.T) {
	copies, err := lru.New[itemKey, *itemCopy](1)
	if err != nil {
		t.Fatal(err)
	}
	s, key, now := &Store{copies: copies}, itemKey{"p", "s0"}, time.Now()
	first, second := &itemCopy{readAt: now}, &itemCopy{readAt: now.Add(time.Millisecond)}
	s.cacheCopy(key, first)
	s.cacheCopy(key, second)
	s.cacheCopy(key, first)
	if s.cachedCopy(key) != second {
		t.Error("a copy of the item has been replaced by one that was read before it")
	}
}
