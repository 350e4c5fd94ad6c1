package sim

import (
	_ "embed" // the page's sections
	"fmt"
	"html/template"
	"io"
	"time"

	"github.com/sluicelimits/sluice/bench/fleet/reportpage"
)

var (
	//go:embed report.html
	pageHTML string

	pageTemplate = reportpage.New("fleet", pageHTML, template.FuncMap{
		"seconds": func(s float64) string { return fmt.Sprintf("%.4g s", s) },
		"ms":      func(ms float64) string { return fmt.Sprintf("%.4g ms", ms) },
	})
)

// page is the data of the page's template.
type page struct {
	*Report
	reportpage.Page
	Strips []strip
}

// strip is a row below the plot: a number for each point of the timeline.
type strip struct {
	ID       string  `json:"id"`
	Sum      int64   `json:"sum"`
	Timeline []int64 `json:"timeline"`
}

// plot is the data of the script that draws the page's plot, see package reportpage.
type plot struct {
	Timeline plotTimeline `json:"timeline"`
	Limits   []strip      `json:"limits"`
	Bands    []band       `json:"bands"`
	Denied   int64        `json:"denied"`
}

type plotTimeline struct {
	StepSeconds int64       `json:"step_seconds"`
	Points      []plotPoint `json:"points"`
}

type plotPoint struct {
	At      time.Time `json:"at"` // counted from 1970, as if the run had begun then
	Allowed int64     `json:"allowed"`
	Denied  int64     `json:"denied"`
	Other   int64     `json:"other"`
}

type band struct {
	From  float64 `json:"from"` // seconds
	Until float64 `json:"until"`
}

// WriteHTML writes the report as one HTML page that loads nothing from elsewhere.
func (r *Report) WriteHTML(w io.Writer) error {
	strips := r.strips()
	data := plot{Limits: strips, Bands: []band{}, Denied: r.Denied,
		Timeline: plotTimeline{StepSeconds: r.Timeline.StepSeconds}}
	for i := range r.Timeline.Points {
		p := &r.Timeline.Points[i]
		data.Timeline.Points = append(data.Timeline.Points, plotPoint{Allowed: p.Allowed, Denied: p.Denied,
			Other: p.Unserved, At: time.UnixMilli(int64(p.At * 1000)).UTC()})
	}
	for i := range r.Faults {
		data.Bands = append(data.Bands, band{r.Faults[i].At, r.Faults[i].Until})
	}
	frame, err := reportpage.PageOf(&data)
	if err != nil {
		return err
	}
	return reportpage.Write(w, pageTemplate, &page{r, frame, strips})
}

// strips returns the strips that have something to show.
func (r *Report) strips() []strip {
	out := []strip{}
	for _, s := range []struct {
		name string
		of   func(*Happened) int64
	}{
		{"calls of the store", func(h *Happened) int64 { return h.StoreOps }},
		{"denied early", func(h *Happened) int64 { return h.Early }},
		{"decided by the fallback limiter", func(h *Happened) int64 { return h.Degraded }},
		{"not decided", func(h *Happened) int64 { return h.Unserved }},
		{"units above a limit", func(h *Happened) int64 { return h.Over }},
	} {
		one := strip{ID: s.name}
		for i := range r.Timeline.Points {
			n := s.of(&r.Timeline.Points[i].Happened)
			one.Timeline = append(one.Timeline, n)
			one.Sum += n
		}
		if one.Sum > 0 {
			out = append(out, one)
		}
	}
	return out
}

// Title is the title of the page.
func (p *page) Title() string { return "fleet " + p.Scenario }

// TenantCount and InstanceCount are shown in the head of the page.
func (p *page) TenantCount() int64   { return int64(p.Tenants) }
func (p *page) InstanceCount() int64 { return int64(p.Instances) }

type total struct {
	Key, Label string
	N          int64
	Note       string
}

// Totals are the figures at the head of the page.
func (p *page) Totals() []total {
	of := func(n int64) string { return reportpage.Share(n, p.Decisions) }
	return []total{
		{"decisions", "Decisions", p.Decisions, of(p.Local) + " from leases"},
		{"allowed", "Allowed", p.Allowed, of(p.Allowed)},
		{"denied", "Denied", p.Denied, of(p.Denied)},
		{"early", "Denied early", p.Early, of(p.Early)},
		{"over", "Units above a limit", p.Over, "by the judge"},
		{"degraded", "By the fallback limiter", p.Degraded, of(p.Degraded)},
		{"unserved", "Not decided", p.Failed + p.Lost + p.Refused, ""},
		{"store_ops", "Store calls per second", int64(p.StoreOps), ""},
		{"p99", "p99 of a decision, µs", int64(p.P99ms * 1000), fmt.Sprintf("p50 %.4g, p99.9 %.4g ms; %s by the "+
			"fallback limiter", p.P50ms, p.P999ms, of(p.Degraded))},
	}
}
