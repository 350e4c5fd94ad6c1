package simulate

import (
	_ "embed" // the page's sections
	"html/template"
	"io"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/accesslog"
	"github.com/sluicelimits/sluice/internal/dev/reportpage"
)

var (
	//go:embed page/report.html
	pageHTML string

	pageTemplate = reportpage.New("report", pageHTML, template.FuncMap{
		"clock": clock, "duration": duration, "stamp": stamp,
	})
)

// page is the data of the page's template.
type page struct {
	*Report
	reportpage.Page
}

// Title is the title of the page.
func (p *page) Title() string { return "simulation" }

// WriteHTML writes the report as one HTML page that loads nothing from elsewhere. All text from a log is escaped, and
// the page's Content-Security-Policy allows no other scripts than the page's own.
func (r *Report) WriteHTML(w io.Writer) error {
	frame, err := reportpage.PageOf(r)
	if err != nil {
		return err
	}
	return reportpage.Write(w, pageTemplate, &page{r, frame})
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Totals returns the rows of the table of totals.
func (p *page) Totals() []total {
	rows := append([]total{{Key: "requests", Label: "Requests", N: p.Requests}}, p.totals()...)
	return append(rows, total{"skipped_lines", "Lines skipped", p.SkippedLines, p.Lines})
}

// Span describes the time that the log covers.
func (p *page) Span() string {
	if p.From == nil {
		return "no requests"
	}
	return clock(*p.From) + " to " + clock(*p.To)
}

// LogNames returns the names of the logs, shortened.
func (p *page) LogNames() string { return logNames(p.Logs) }

// Step describes the length of a point of the timeline.
func (p *page) Step() string { return duration(p.Timeline.StepSeconds * 1000) }

// Reasons returns the reasons for which lines were skipped, with their numbers.
func (p *page) Reasons() (out []total) {
	for _, reason := range accesslog.Reasons() {
		if n := p.Skipped[reason.String()]; n > 0 {
			out = append(out, total{Key: reason.String(), Label: reason.Explain(), N: n})
		}
	}
	return out
}

// Denying returns the limits with denials, including those of shadow limits, for the plots below the timeline.
func (p *page) Denying() []LimitReport {
	return slices.DeleteFunc(slices.Clone(p.Limits), func(l LimitReport) bool { return l.Timeline == nil })
}

// DeniedRows returns the data of these plots as a table: the points with denials, and the number of each limit.
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

// MaxApplied returns the number that the full width of a limit's bar stands for.
func (p *page) MaxApplied() (most int64) {
	for i := range p.Limits {
		most = max(most, p.Limits[i].Applied)
	}
	return most
}

// MaxRequests returns the number that the full width of the ranking's bars stands for.
func (r *Ranking) MaxRequests() (most int64) {
	for i := range r.Top {
		most = max(most, r.Top[i].Requests)
	}
	return most
}
