package shared

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// Length says how long a run takes. A run begins at the beginning of a window. It warms up for Warm whole windows, and
// then measures for Measured windows.
type Length struct {
	Warm, Measured int
}

func (l Length) total() time.Duration { return time.Duration(l.Warm+l.Measured) * Period }

// Run runs the scenario with a process for each instance, on a new Redis.
func Run(ctx context.Context, s *Scenario, by Limiter, seed uint64, length Length) (Score, error) {
	g, err := run(ctx, s, by, seed, length)
	if err != nil {
		return g, fmt.Errorf("%s, %s: %w", s.Name, by, err)
	}
	return g, nil
}

func run(ctx context.Context, s *Scenario, by Limiter, seed uint64, length Length) (g Score, err error) {
	dir, err := os.MkdirTemp("", "sluice-workload-")
	if err != nil {
		return g, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	server, err := redistest.Launch(dir)
	if err != nil {
		return g, err
	}
	defer server.Kill()
	client := goredis.NewClient(redis.Options(redis.Config{Addrs: []string{server.Addr}, Deadline: storeDeadline}))
	defer func() { _ = client.Close() }()

	var all []*instance
	defer func() {
		for _, p := range all {
			err = errors.Join(err, p.stop())
		}
	}()
	for i := range s.Instances {
		p, err := start(&order{Scenario: *s, Limiter: by, Redis: server.Addr, Instance: i, Seed: seed,
			Length: length.total()})
		if err != nil {
			return g, err
		}
		all = append(all, p)
	}
	for _, p := range all {
		var r readiness
		if err := p.out.Decode(&r); err != nil {
			return g, fmt.Errorf("an instance is not ready: %w", err)
		}
		if off := max(r.Offset, -r.Offset); off > r.Round+time.Millisecond {
			return g, fmt.Errorf("clocks differ by %s in a round trip of %s: the log cannot be merged", r.Offset,
				r.Round)
		}
	}
	begin := time.Now().Truncate(Period).Add(Period)
	if time.Until(begin) < time.Second {
		begin = begin.Add(Period)
	}
	for _, p := range all {
		if err := p.to.Encode(begin); err != nil {
			return g, err
		}
	}
	time.Sleep(time.Until(begin.Add(-drainBefore)))
	events, err := drain(ctx, s, server.Addr)
	if err != nil {
		return g, err
	}
	measured := span{begin.Add(time.Duration(length.Warm) * Period).UnixMicro(), begin.Add(length.total()).UnixMicro()}
	calls, err := callsWithin(ctx, client, measured)
	if err != nil {
		return g, err
	}
	reports, err := collect(all)
	if err != nil {
		return g, err
	}
	return merge(s, events, reports, measured, calls)
}

// collect reads the reports of all instances.
func collect(all []*instance) ([]report, error) {
	reports := make([]report, len(all))
	for i, p := range all {
		if err := p.out.Decode(&reports[i]); err != nil {
			return nil, fmt.Errorf("the report of instance %d: %w", i, err)
		}
	}
	return reports, nil
}

// merge computes the score of a run from the reports of all instances. It returns an error if an instance did not get
// the requests that it should have got.
func merge(s *Scenario, events []Event, reports []report, measured span, calls int64) (Score, error) {
	var late []time.Duration
	memory, lost := int64(0), int64(0)
	for _, r := range reports {
		for _, e := range r.Events {
			if e.Units > 0 { // otherwise the request got an error instead of a decision
				events = append(events, e)
			}
		}
		late = append(late, r.Late...)
		memory, lost = max(memory, r.Memory), lost+r.Lost
		if len(r.Events) == 0 {
			return Score{}, errors.New("an instance got no request")
		}
		for _, text := range r.Errors {
			return Score{}, fmt.Errorf("%d requests were not decided, such as: %s", r.Lost, text)
		}
	}
	g := grade(s, events, measured)
	if err := g.plausible(s, measured); err != nil {
		return g, err
	}
	slices.Sort(late)
	g.Late, g.Memory, g.Lost = late[len(late)*99/100], memory, lost
	g.StoreOps = float64(calls) / (float64(measured.until-measured.from) / 1e6)
	return g, nil
}

// plausible checks that the number of requests is within six standard deviations of the expected number. The number of
// arrivals has a Poisson distribution, so its variance equals the expected number.
func (g *Score) plausible(s *Scenario, measured span) error {
	want := s.Demand() * float64(measured.until-measured.from) / 1e6
	if diff := float64(g.Requests) - want; diff*diff > 36*want {
		return fmt.Errorf("%d requests were logged, want about %.0f", g.Requests, want)
	}
	return nil
}

// drainBefore is how long before the load begins buckets are emptied. It is short, so that little is refilled
// meanwhile.
const drainBefore = 300 * time.Millisecond

// drain empties the token buckets, and returns these admissions as events. Without it, the load would take half a
// minute to use up the burst.
func drain(ctx context.Context, s *Scenario, addr string) ([]Event, error) {
	store, err := redis.New(ctx, redis.Config{Addrs: []string{addr}, Deadline: storeDeadline})
	if err != nil {
		return nil, err
	}
	defer func() { _ = store.Close() }()
	return s.drain(ctx, store, time.Now)
}

func (s *Scenario) drain(ctx context.Context, store limit.Store, now func() time.Time) ([]Event, error) {
	if s.Algorithm != limit.TokenBucket {
		return nil, nil
	}
	requests, err := s.requests()
	if err != nil {
		return nil, err
	}
	var events []Event
	var d limit.Decision
	for i := range requests {
		if float64(s.Limits[i]) > 2*s.Rates[i]*Period.Seconds() { // this limit is meant never to bind
			continue
		}
		req := requests[i]
		req.Charges = slices.Clone(req.Charges)
		req.Charges[0].Cost = s.Limits[i]
		if err := store.Decide(ctx, &req, now(), &d); err != nil {
			return nil, err
		}
		if !d.Allowed {
			return nil, fmt.Errorf("%s: a new bucket does not hold its burst", s.Name)
		}
		events = append(events, Event{At: d.Now, Tenant: int32(i), Units: int32(s.Limits[i]), Allowed: true})
	}
	return events, nil
}

// callsWithin waits until the measured time is over, and returns how many calls the server counted in that time.
func callsWithin(ctx context.Context, client *goredis.Client, measured span) (int64, error) {
	var counts [2]int64
	for i, at := range [2]int64{measured.from, measured.until} {
		time.Sleep(time.Until(time.UnixMicro(at)))
		n, err := calls(ctx, client)
		if err != nil {
			return 0, err
		}
		counts[i] = n
	}
	return counts[1] - counts[0], nil
}

// calls returns how many scripts the server has run. Every call of the Redis store runs one script.
func calls(ctx context.Context, client *goredis.Client) (int64, error) {
	info, err := client.InfoMap(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	total := int64(0)
	for name, text := range info["Commandstats"] {
		command := strings.TrimPrefix(name, "cmdstat_")
		if !strings.HasPrefix(command, "eval") && !strings.HasPrefix(command, "fcall") {
			continue
		}
		var n int64
		if _, err := fmt.Sscanf(text, "calls=%d,", &n); err != nil {
			return 0, fmt.Errorf("INFO commandstats: %s: %q: %w", name, text, err)
		}
		total += n
	}
	return total, nil
}
