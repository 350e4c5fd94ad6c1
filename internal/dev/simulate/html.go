package simulate

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the page's parts
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/accesslog"
)

var (
	//go:embed page/report.html
	pageHTML string
	//go:embed page/report.css
	pageCSS string
	//go:embed page/report.js
	pageJS string

	pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
		"grouped": grouped, "share": share, "clock": clock, "duration": duration, "stamp": stamp, "bar": newBar,
	}).Parse(pageHTML))
)

// page is what the template sees.
type page struct {
	*Report
	Policy string // Content-Security-Policy
	CSS    template.CSS
	Script template.JS
	Data   template.JS
}

// WriteHTML writes the report as one page that needs nothing beside itself. Everything a log brought along is escaped,
// and the page's own policy lets no script run but its own.
func (r *Report) WriteHTML(w io.Writer) error {
	data, err := json.Marshal(r) // escapes <, > and &, so the text cannot end its script element
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	p := page{
		Report: r,
		Policy: fmt.Sprintf("default-src 'none'; style-src '%s'; script-src '%s'; img-src data:; base-uri 'none'; "+
			"form-action 'none'",
			sourceHash(pageCSS), sourceHash(pageJS)),
		CSS:    template.CSS(pageCSS), //nolint:gosec // the program's own text
		Script: template.JS(pageJS),   //nolint:gosec // the program's own text
		Data:   template.JS(data),     //nolint:gosec // JSON with <, > and & escaped
	}
	var out bytes.Buffer
	if err := pageTemplate.Execute(&out, &p); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	_, err = w.Write(out.Bytes())
	return err
}

// sourceHash is the text's name in a Content-Security-Policy.
func sourceHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Totals are the rows of the page's totals.
func (p *page) Totals() []pageTotal {
	out := []pageTotal{{"requests", "Requests", p.Requests, ""}}
	for _, t := range p.totals() {
		out = append(out, pageTotal{t.key, t.label, t.n, share(t.n, p.Requests)})
	}
	return append(out, pageTotal{"skipped_lines", "Lines skipped", p.SkippedLines, share(p.SkippedLines, p.Lines)})
}

type pageTotal struct {
	Key, Label string
	N          int64
	Share      string
}

// Span is the time that the log covers, in words.
func (p *page) Span() string {
	if p.From == nil {
		return "no requests"
	}
	return clock(*p.From) + " to " + clock(*p.To)
}

// LogNames are the logs in short.
func (p *page) LogNames() string { return logNames(p.Logs) }

// Step is the length of a point of the timeline, in words.
func (p *page) Step() string {
	minutes := p.Timeline.StepSeconds / 60
	switch {
	case minutes == 1:
		return "minute"
	case minutes == 60:
		return "hour"
	case minutes == 1440:
		return "day"
	case minutes%1440 == 0:
		return strconv.FormatInt(minutes/1440, 10) + " days"
	case minutes%60 == 0:
		return strconv.FormatInt(minutes/60, 10) + " hours"
	}
	return strconv.FormatInt(minutes, 10) + " minutes"
}

// Reasons are why lines were skipped, those that occur.
func (p *page) Reasons() []pageTotal {
	var out []pageTotal
	for _, reason := range accesslog.Reasons() {
		if n := p.Skipped[reason.String()]; n > 0 {
			out = append(out, pageTotal{Key: reason.String(), Label: reason.Explain(), N: n})
		}
	}
	return out
}

// Denying are the limits that have denials to show over time, real or a shadow's.
func (p *page) Denying() []LimitReport {
	var out []LimitReport
	for i := range p.Limits {
		if len(p.Limits[i].Timeline) > 0 {
			out = append(out, p.Limits[i])
		}
	}
	return out
}

// DeniedRows is the table behind the strips: the points with denials, and each limit's number.
func (p *page) DeniedRows() []deniedRow {
	denying := p.Denying()
	var out []deniedRow
	for i, point := range p.Timeline.Points {
		if point.Denied+point.ShadowDenied == 0 {
			continue
		}
		row := deniedRow{At: point.At}
		for j := range denying {
			row.N = append(row.N, denying[j].Timeline[i])
		}
		out = append(out, row)
	}
	return out
}

type deniedRow struct {
	At time.Time
	N  []int64
}

// MaxApplied is the scale of the limits' bars.
func (p *page) MaxApplied() (most int64) {
	for i := range p.Limits {
		most = max(most, p.Limits[i].Applied)
	}
	return most
}

// MaxRequests is the scale of the ranking's bars.
func (r *Ranking) MaxRequests() (most int64) {
	for i := range r.Top {
		most = max(most, r.Top[i].Requests)
	}
	return most
}

// From is where in the plans file the limit stands.
func (l *LimitReport) From() string { return l.from() }

// Waits reports whether a denied request would have been admitted later.
func (l *LimitReport) Waits() bool { return l.LongestWaitMS > 0 }

// Note says what is special about a tenant.
func (p *Person) Note() string { return p.note() }

// OthersName is what the row of those that are not listed is called.
func (r *Ranking) OthersName() string { return r.othersName() }

// Most is who was denied most in the minute.
func (m *Minute) Most() string { return m.most() }

// bar is the parts of a bar that is 100 wide at most.
type bar struct {
	Denied, Shadow, Allowed, Rest float64 // widths
	ShadowAt, AllowedAt, RestAt   float64 // where they begin
}

// newBar scales the parts of all to most.
func newBar(denied, shadow, allowed, all, most int64) bar {
	scale := func(n int64) float64 {
		if most < 1 {
			return 0
		}
		return float64(n*10000/most) / 100
	}
	b := bar{Denied: scale(denied), Shadow: scale(shadow), Allowed: scale(allowed)}
	b.ShadowAt = b.Denied
	b.AllowedAt = b.ShadowAt + b.Shadow
	b.RestAt = b.AllowedAt + b.Allowed
	b.Rest = max(0, scale(all)-b.RestAt)
	return b
}
