package fleet

import (
	"slices"

	"github.com/sluicelimits/sluice/internal/dev/cost"
)

// Money is what a month at the simulated rate costs by the list prices of AWS. With Lambda environments, the cost
// covers the deployment without the API in front of it. With servers, it covers only the store: the nodes of Redis and
// the traffic to them, or the use of the table of DynamoDB.
type Money struct {
	Monthly cost.Micros `json:"monthlyUsd"`
	Region  string      `json:"region"`
	Without string      `json:"without"` // what the cost does not include
	Lines   []cost.Line `json:"lines"`   // the most expensive first
}

// money returns the cost, or nil if nothing was measured, if there are several cells, or if package
// cost does not know such a workload.
func (r *run) money(report *Report) *Money {
	s := r.scenario
	prices, err := cost.ListPrices()
	if err != nil || report.Seconds == 0 || report.Decisions == 0 || r.plane != nil {
		return nil
	}
	decided := float64(report.Decisions) / report.Seconds * r.sampleWeight
	w := cost.NewWorkload(decided)
	w.Profile, w.Tenants, w.Peak = cost.Full, int64(report.Tenants), 1
	w.DeniedShare = float64(report.Denied) / float64(report.Decisions)
	w.StoreCalls, w.Shards = report.StoreOps, int64(report.ShardsNeeded)
	if report.Table != nil {
		w.Profile, w.Shards = cost.Small, 0
		w.StoreCalls = report.Table.WriteUnits
		w.StoreReads = report.Table.ReadUnits
	}
	functions := s.Shape == Lambda || s.BehindAuthorizer > 0
	if functions {
		w.Duration = s.Busy
	}
	bill, err := cost.New(&w, prices)
	if err != nil {
		return nil
	}
	m := &Money{Region: w.Region, Without: "the API in front"}
	switch {
	case s.BehindAuthorizer > 0:
		m.Without = "the API in front, the instances of serve, and the traffic to them"
	case !functions:
		m.Without = "the instances of serve and their load balancer"
	}
	for i := range bill.Lines {
		l := &bill.Lines[i]
		if l.Anyway || !functions && !ofCounters(l) || report.Table != nil && l.What == cost.Announcements {
			continue
		}
		m.Lines = append(m.Lines, *l)
		m.Monthly += l.Amount
	}
	slices.SortStableFunc(m.Lines, func(a, b cost.Line) int { return int(b.Amount - a.Amount) })
	return m
}

// ofCounters reports whether a line is about the store of the counters, and not about functions.
func ofCounters(l *cost.Line) bool {
	switch l.What {
	case "between zones", cost.CounterWrites, cost.CounterReads:
		return true
	}
	return l.Service == "ElastiCache"
}
