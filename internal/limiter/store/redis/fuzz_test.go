package redis

import (
	"bufio"
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
)

// fuzzRequest returns a request over two packs, with token buckets and windows, and with a sliding_log if withLog is
// true.
func fuzzRequest(tb testing.TB, withLog bool) *limit.Request {
	tb.Helper()
	var charges []limit.Charge
	add := func(l limit.Limit, v limit.Value) {
		built := limittest.MustNew(tb, l)
		charges = append(charges, limit.Charge{Limit: built, Value: v, Cost: 1})
	}
	add(limit.Limit{ID: "a", Tiers: []limit.Tier{
		{Algorithm: limit.TokenBucket, Threshold: 10, Period: time.Second},
		{Algorithm: limit.SlidingWindow, Threshold: 10, Period: time.Minute},
	}}, limit.Value{})
	add(limit.Limit{ID: "b", Per: "subject", Tiers: []limit.Tier{{Algorithm: limit.LeakyBucket, Threshold: 3,
		Period: time.Second}}}, limit.ValueOf("u"))
	if withLog {
		add(limit.Limit{ID: "c", Mode: limit.Shadow, Tiers: []limit.Tier{{Algorithm: limit.SlidingLog, Threshold: 3,
			Period: time.Second}}}, limit.Value{})
	}
	return &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: "acme"}, Charges: charges}
}

// The kinds of requests that a reply belongs to.
const (
	fuzzPlain byte = iota
	fuzzLog
	fuzzLeases
)

// FuzzReply guarantees that no reply makes the decoder panic, hang, or return an inconsistent decision. After an error
// the decision is empty.
func FuzzReply(f *testing.F) {
	const now = 1772452800000000
	doubles := func(numbers ...int64) string { return string(appendDoubles(nil, numbers...)) }
	f.Add(doubles(append([]int64{now, 1}, make([]int64, 2+3*3)...)...), fuzzPlain)
	// The time and whether it admits; the first pack with the states of a bucket, a window and a log, and the bucket's
	// marks; the second pack with the state of a leaky bucket; the summary of the log.
	withMarks := func(missing int64, marks ...int64) string {
		return doubles(slices.Concat([]int64{now, 1, 2, now, missing, 10}, make([]int64, 2*3), marks,
			make([]int64, 1+3+5))...)
	}
	f.Add(doubles(append([]int64{now, 1}, make([]int64, 2+4*3+5)...)...), fuzzLog)
	f.Add(withMarks(5_000_000, 0, 0, now+300_000, 4, 0, 0), fuzzLog)
	for _, held := range []int64{4, -4, 1 << 50} {
		f.Add(withMarks(5_000_000, 100, 1, now+300_000, held, now, 3), fuzzLeases)
	}
	f.Add(withMarks(-5_000_000, 0, 0, now+1<<50, 4, 0, 0), fuzzLeases)
	f.Add("", fuzzPlain)
	f.Add(strings.Repeat("\x00", 400), fuzzLog)
	plain, logged, leased := fuzzRequest(f, false), fuzzRequest(f, true), fuzzRequest(f, true)
	for range 4 {
		leased.Leases = append(leased.Leases, limit.LeaseRequest{Need: 1, Least: 3, Most: 8, Share: limit.ShareOne})
	}
	leased.Leases[0].Ramp, leased.Leases[0].Correction, leased.Leases[0].CorrectionAt = true, -2, now+300_000
	leased.Leases[2] = limit.LeaseRequest{Need: 1} // of a leaky bucket
	leased.Leases[3].Correction, leased.Leases[3].CorrectionAt = 1, now
	f.Fuzz(func(t *testing.T, reply string, kind byte) {
		req := plain
		switch kind {
		case fuzzPlain:
		case fuzzLog:
			req = logged
		case fuzzLeases:
			req = leased
		default:
			return
		}
		var q query
		q.begin(&Store{}, req, 1772452800000000, true)
		var d limit.Decision
		if err := q.decode(reply, &d); err != nil {
			return
		}
		for i := range d.Results {
			if r := &d.Results[i]; r.Charged != 0 && (!d.Allowed || r.Charged != r.Cost) {
				t.Errorf("reply %q: allowed %t, but result %d is charged %d of %d", reply, d.Allowed, i, r.Charged,
					r.Cost)
			}
			if g := d.Lease(i); g.Units < 0 || g.Upfront < 0 || g.Upfront > g.Units || (!d.Allowed && g.Units > 0) {
				t.Errorf("reply %q: allowed %t, but result %d grants the lease %+v", reply, d.Allowed, i, g)
			}
		}
		if d.Allowed && d.RetryAfter() != 0 {
			t.Errorf("reply %q: allowed, but RetryAfter is %s, want 0", reply, d.RetryAfter())
		}
	})
}

// Guarantees that a script whose decision contradicts package limit leads to the error that the owner's counters cannot
// be read, and not to a failure of the server: intact counters never lead to such a reply.
func TestContradictionIsUnreadable(t *testing.T) {
	var q query
	q.begin(&Store{}, fuzzRequest(t, false), 1772452800000000, true)
	var d limit.Decision
	denied := appendDoubles(nil, append([]int64{1772452800000000, 0}, make([]int64, 2+3*3)...)...) // none was ever used
	if err := q.decode(string(denied), &d); !errors.Is(err, limit.ErrUnreadable) {
		t.Errorf("%v; want limit.ErrUnreadable", err)
	}
}

// FuzzFirst guarantees that the text from a server's first reply on a connection is bounded, whatever the server sends.
func FuzzFirst(f *testing.F) {
	f.Add([]byte("+OK\r\n"))
	f.Add([]byte("*3\r\n$6\r\nmaster\r\n:0\r\n*1\r\n*3\r\n$9\r\n127.0.0.1\r\n$4\r\n6380\r\n$1\r\n0\r\n"))
	f.Add([]byte("-NOAUTH Authentication required.\r\n"))
	f.Add([]byte("$-1\r\n"))
	f.Add([]byte("*1000000000\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		budget := maxReply
		text, err := firstText(bufio.NewReader(bytes.NewReader(b)), &budget, 0)
		if err != nil && text != "" {
			t.Errorf("%q: %q and %v", b, text, err)
		}
		if len(text) > len(b) {
			t.Errorf("%q: a text of %d bytes", b, len(text))
		}
	})
}
