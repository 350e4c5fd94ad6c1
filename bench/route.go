package bench

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/sluicelimits/sluice/internal/plan/route"
)

const routeRules = 500

// request is one request to match, with the indexes of the rules that it must hit.
type request struct {
	method, path string
	want         []int32
}

// routeLoad has 500 rules, like those of a large API: five versions of twenty resources with five rules each, one of
// which matches every path below the resource. Its requests hit 0, 1 or 2 rules.
type routeLoad struct {
	index    *route.Index
	rules    []route.Rule
	requests []request
}

func newRouteLoad() (*routeLoad, error) {
	var l routeLoad
	add := func(pattern string, methods ...string) error {
		p, err := route.ParsePattern(pattern)
		l.rules = append(l.rules, route.Rule{Methods: methods, Pattern: p})
		return err
	}
	for version := range 5 {
		for resource := range 20 {
			base := fmt.Sprintf("/v%d/organizations/{org}/resource-%d", version+1, resource)
			for _, err := range []error{
				add(base, "GET"),
				add(base, "POST"),
				add(base+"/*", "GET", "PUT", "DELETE"),
				add(base+"/{id}/items/{item}", "GET"),
				add(base + "/**"),
			} {
				if err != nil {
					return nil, err
				}
			}
		}
	}
	if len(l.rules) != routeRules {
		return nil, fmt.Errorf("%d rules, want %d", len(l.rules), routeRules)
	}
	l.index = route.NewIndex(l.rules)
	for i := range 1000 {
		base := fmt.Sprintf("/v%d/organizations/org-%d/resource-%d", i%5+1, i, i%20)
		id := strconv.Itoa(i * 7919)
		for _, r := range []request{
			{method: "GET", path: base},
			{method: "PUT", path: base + "/" + id},
			{method: "GET", path: base + "/" + id + "/items/" + id},
			{method: "PATCH", path: base + "/" + id + "/some/where/else"},
			{method: "GET", path: "/v9/organizations/org-1/resource-1"},
		} {
			r.want = l.scan(r.method, r.path)
			l.requests = append(l.requests, r)
		}
	}
	return &l, l.verify()
}

// scan returns the indexes of the rules that a request hits, by comparing it with each rule.
func (l *routeLoad) scan(method, raw string) []int32 {
	path := route.Clean(raw)
	var hits []int32
	for i := range l.rules {
		r := &l.rules[i]
		if (len(r.Methods) == 0 || slices.Contains(r.Methods, method)) && r.Pattern.Matches(&path) {
			hits = append(hits, int32(i))
		}
	}
	return hits
}

// verify checks that the index gives the same answers as scan, and that there are requests with 0, 1 and 2 hits.
func (l *routeLoad) verify() error {
	answers := make(map[int]int)
	var dst []int32
	for _, r := range l.requests {
		path := route.Clean(r.path)
		dst = l.index.Match(dst[:0], r.method, &path)
		if !slices.Equal(dst, r.want) {
			return fmt.Errorf("%s %s matches rules %v, want %v", r.method, r.path, dst, r.want)
		}
		answers[len(dst)]++
	}
	for hits := range 3 {
		if answers[hits] == 0 {
			return fmt.Errorf("no request hits %d rules: %v", hits, answers)
		}
	}
	return nil
}

// run cleans and matches ops requests in turn, and returns how many rules they hit.
func (l *routeLoad) run(ops int) (hits int) {
	for i := range ops {
		hits += l.match(i % len(l.requests))
	}
	return hits
}

// match cleans and matches request i, and returns how many rules it hits.
func (l *routeLoad) match(i int) int {
	var room [16]int32
	path := route.Clean(l.requests[i].path)
	return len(l.index.Match(room[:0], l.requests[i].method, &path))
}

// hits returns how many rules all requests hit in the given number of rounds.
func (l *routeLoad) hits(rounds int) (hits int) {
	for _, r := range l.requests {
		hits += len(r.want)
	}
	return hits * rounds
}

// routeFigure measures the processor time to clean a request's path and find the rules it hits among 500.
func routeFigure(short bool) (Result, error) {
	l, err := newRouteLoad()
	if err != nil {
		return Result{}, err
	}
	if n := testing.AllocsPerRun(10, func() { l.run(len(l.requests)) }); n > 0 {
		return Result{}, fmt.Errorf("%.0f allocations in %d matches, want 0", n, len(l.requests))
	}
	runtime.GC()
	rounds, each := loadFor(short).rounds, 20
	var times []float64
	for range rounds {
		began := processorTime()
		hits := l.run(each * len(l.requests))
		times = append(times, (processorTime()-began).Seconds()*1e6/float64(each*len(l.requests)))
		if want := l.hits(each); hits != want {
			return Result{}, fmt.Errorf("%d rules hit, want %d", hits, want)
		}
	}
	r := Result{Value: median(times)}
	r.note("path cleaned and matched, %d rules, %d requests, 0 allocations", len(l.rules), len(l.requests))
	return r, nil
}
