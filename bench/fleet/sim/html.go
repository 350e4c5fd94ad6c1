package sim

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the page
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strconv"
)

var (
	//go:embed report.html
	pageHTML string
	//go:embed report.css
	pageStyle string
	//go:embed report.js
	pageScript string

	pageTemplate = template.Must(template.New("fleet").Funcs(template.FuncMap{
		"grouped": grouped,
		"seconds": func(s float64) string { return fmt.Sprintf("%.4g s", s) },
		"ms":      func(ms float64) string { return fmt.Sprintf("%.4g ms", ms) },
	}).Parse(pageHTML))
)

// page is the data of the page's template.
type page struct {
	*Report
	Policy string // Content-Security-Policy, which lets no other script run
	CSS    template.CSS
	Script template.JS
	Data   template.JS // the data that the script reads
	Strips []strip
}

// strip is a row below the plot: a number for each point of the timeline.
type strip struct {
	ID       string  `json:"id"`
	Sum      int64   `json:"sum"`
	Timeline []int64 `json:"timeline"`
}

// plot is the data of the script that draws the page's plot.
type plot struct {
	StepSeconds int64       `json:"step_seconds"`
	Points      []plotPoint `json:"points"`
	Strips      []strip     `json:"strips"`
	Bands       []band      `json:"bands"`
	Denied      int64       `json:"denied"`
}

type plotPoint struct {
	At      float64 `json:"at"` // seconds since the beginning of the run
	Allowed int64   `json:"allowed"`
	Denied  int64   `json:"denied"`
	Other   int64   `json:"other"`
}

type band struct {
	From  float64 `json:"from"` // seconds
	Until float64 `json:"until"`
}

// WriteHTML writes the report as one HTML page that loads nothing from elsewhere. If it fails, nothing is written.
func (r *Report) WriteHTML(w io.Writer) error {
	data := plot{Strips: r.strips(), Bands: []band{}, Denied: r.Denied, StepSeconds: r.Timeline.StepSeconds}
	for i := range r.Timeline.Points {
		p := &r.Timeline.Points[i]
		data.Points = append(data.Points, plotPoint{At: p.At, Allowed: p.Allowed, Denied: p.Denied, Other: p.Unserved})
	}
	for i := range r.Faults {
		data.Bands = append(data.Bands, band{r.Faults[i].At, r.Faults[i].Until})
	}
	text, err := json.Marshal(&data) // escapes <, > and &, so the text cannot end its script element
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	var out bytes.Buffer
	err = pageTemplate.Execute(&out, &page{
		Report: r, Strips: data.Strips,
		Policy: fmt.Sprintf("default-src 'none'; style-src '%s'; script-src '%s'; img-src data:; base-uri 'none'; "+
			"form-action 'none'", sourceHash(pageStyle), sourceHash(pageScript)),
		CSS:    template.CSS(pageStyle), //nolint:gosec // the program's own text
		Script: template.JS(pageScript), //nolint:gosec // the program's own text
		Data:   template.JS(text),       //nolint:gosec // JSON with <, > and & escaped
	})
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	_, err = w.Write(out.Bytes())
	return err
}

// sourceHash returns the source expression that allows the text in a Content-Security-Policy.
func sourceHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// grouped returns the number with its thousands separated.
func grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
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
	of := func(n int64) string { return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(max(p.Decisions, 1))) }
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
