package simulate

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluicelimits/sluice/internal/dev/accesslog"
	"github.com/sluicelimits/sluice/internal/dev/reportpage"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// WriteText writes the report as tables for a terminal. Text from a log is shown without control characters.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "Note: %s.\n\n", sanitized(note))
	}
	r.textTotals(&b)
	r.textLimits(&b)
	textRanking(&b, "TENANT", &r.Tenants)
	textRanking(&b, "ADDRESS", &r.Addresses)
	r.textMinutes(&b)
	r.textLines(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) textTotals(b *strings.Builder) {
	fmt.Fprintf(b, "%s requests in %s lines of %s", grouped(r.Requests), grouped(r.Lines), logNames(r.Logs))
	if r.From != nil {
		fmt.Fprintf(b, ", %s to %s", clock(*r.From), clock(*r.To))
	}
	b.WriteString("\n\n")
	t := table{right: []bool{false, true, true}, gap: "  "}
	for _, row := range r.totals() {
		t.add(row.label, grouped(row.n), share(row.n, r.Requests))
	}
	t.write(b)
	if l := r.LongestWait; l != nil {
		fmt.Fprintf(b, "\nLongest wait: %s by limit %s, for %s at %s.\n", duration(l.MS), l.Limit,
			visible(whom(l.Tenant, l.Address)), clock(l.At))
	}
}

func logNames(logs []string) string {
	if len(logs) > 3 {
		return strconv.Itoa(len(logs)) + " logs"
	}
	return visible(strings.Join(logs, ", "))
}

// total is a row of the totals. key identifies it on the HTML page.
type total struct {
	key, label string
	n          int64
}

// totals returns the rows to show: always the first two, and the others if their numbers are not 0.
func (r *Report) totals() []total {
	rows := []total{{"allowed", "Allowed", r.Allowed}, {"denied", "Denied", r.Denied}}
	for _, row := range []total{
		{"shadow_denied", "Allowed, but a shadow limit would deny", r.ShadowDenied},
		{"unknown_tenant", "Refused: unknown tenant", r.UnknownTenant},
		{"suspended", "Refused: tenant suspended", r.Suspended},
		{"no_route", "Not routed", r.NoRoute},
	} {
		if row.n > 0 {
			rows = append(rows, row)
		}
	}
	return rows
}

func (r *Report) textLimits(b *strings.Builder) {
	t := table{right: []bool{false, false, true, true, true, true, true, false}, gap: "  "}
	otherReasons := false
	t.add("LIMIT", "FROM", "APPLIED", "ALLOWED", "DENIED", "SHADOW", "LONGEST WAIT", "RULE")
	for i := range r.Limits {
		l := &r.Limits[i]
		t.add(l.ID, l.from(), grouped(l.Applied), grouped(l.Allowed), grouped(l.Denied), grouped(l.ShadowDenied),
			duration(l.LongestWaitMS), l.Rule+l.modeNote())
		otherReasons = otherReasons || l.Applied > l.Allowed+l.Denied+l.ShadowDenied
	}
	t.writeSection(b)
	if otherReasons {
		b.WriteString("APPLIED also counts requests that were denied or refused for another reason.\n")
	}
}

// from says where in the plans file the limit is defined.
func (l *LimitReport) from() string {
	if l.Plan != "" {
		return l.Origin + " " + l.Plan
	}
	return l.Origin
}

func (l *LimitReport) modeNote() string {
	if l.Mode == "enforce" {
		return ""
	}
	return " (" + l.Mode + ")"
}

func textRanking(b *strings.Builder, title string, r *Ranking) {
	t := table{right: []bool{false, true, true, true, true, true, false}, gap: "  "}
	t.add(title, "REQUESTS", "ALLOWED", "DENIED", "SHADOW", "LONGEST WAIT", "FIRST DENIED")
	for i := range r.Top {
		p := &r.Top[i]
		first := ""
		if p.FirstDenied != nil {
			first = clock(*p.FirstDenied)
		}
		t.add(p.Name+p.note(), grouped(p.Requests), grouped(p.Allowed), grouped(p.Denied), grouped(p.ShadowDenied),
			duration(p.LongestWaitMS), first)
	}
	if o := r.Others; o.Count > 0 {
		t.add(r.othersName(), grouped(o.Requests), grouped(o.Allowed), grouped(o.Denied), grouped(o.ShadowDenied), "",
			"")
	}
	t.writeSection(b)
}

func (p *Person) note() string {
	switch {
	case p.Status != "":
		return " (" + p.Status + ")"
	case p.Plan != "":
		return " (plan " + p.Plan + ")"
	}
	return ""
}

func (r *Ranking) othersName() string {
	if r.Exact {
		return grouped(r.Others.Count) + " others"
	}
	return "others"
}

func (r *Report) textMinutes(b *strings.Builder) {
	t := table{right: []bool{false, true, true, false, false}, gap: "  "}
	t.add("WORST MINUTES", "REQUESTS", "DENIED", "MOST BY LIMIT", "MOST FOR")
	for i := range r.WorstMinutes {
		m := &r.WorstMinutes[i]
		t.add(clock(m.At), grouped(m.Requests), grouped(m.Denied), m.Limit+" ("+grouped(m.LimitDenied)+")", m.most())
	}
	t.writeSection(b)
}

// most returns who was denied most in the minute, with the number.
func (m *Minute) most() string {
	if m.Tenant != "" {
		return m.Tenant + " (" + grouped(m.TenantDenied) + ")"
	}
	return m.Address + " (" + grouped(m.AddressDenied) + ")"
}

func (r *Report) textLines(b *strings.Builder) {
	if r.SkippedLines == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s lines skipped:\n", grouped(r.SkippedLines))
	for _, reason := range accesslog.Reasons() {
		if n := r.Skipped[reason.String()]; n > 0 {
			fmt.Fprintf(b, "  %s: %s\n", reason.Explain(), grouped(n))
		}
	}
	b.WriteString("The first of them:\n")
	for _, o := range r.OddLines {
		fmt.Fprintf(b, "  %s:%d: %s: %q\n", visible(o.Log), o.Line, o.Reason, o.Text)
	}
}

// shownOddLines is how many skipped lines an error shows.
const shownOddLines = 5

// formats describes, with an example, which logs can be replayed.
const formats = `Logs are read in the Common or Combined Log Format, plain or gzip, one request a line, as in
  192.0.2.1 - alice [02/Mar/2026:12:00:00 +0000] "GET /product/1 HTTP/1.1" 200 512
  192.0.2.1 - alice [02/Mar/2026:12:00:00 +0000] "GET /product/1 HTTP/1.1" 200 512 "https://example.com/" "curl/8.0"`

// Unusable returns an error that says why no line of the logs was replayed, or nil if one was. Without that error, the
// report would read as if the limits denied nobody.
func (r *Report) Unusable() error {
	if r.Requests > 0 {
		return nil
	}
	var b strings.Builder
	names := make([]string, len(r.Logs))
	for i, name := range r.Logs {
		names[i] = visible(name)
	}
	if logs := strings.Join(names, ", "); r.Lines == 0 {
		fmt.Fprintf(&b, "nothing to replay: there is no line in %s", logs)
	} else {
		fmt.Fprintf(&b, "nothing to replay: of %s lines in %s none is a line of an access log", grouped(r.Lines), logs)
	}
	for _, text := range r.Incomplete {
		b.WriteString("\n  " + text)
	}
	for _, o := range r.OddLines[:min(len(r.OddLines), shownOddLines)] {
		fmt.Fprintf(&b, "\n  %s:%d: %s: %q", visible(o.Log), o.Line, o.explain(), o.Text)
	}
	b.WriteString("\n" + formats)
	return errors.New(b.String())
}

// explain returns the reason in words.
func (o *OddLine) explain() string {
	for _, reason := range accesslog.Reasons() {
		if reason.String() == o.Reason {
			return reason.Explain()
		}
	}
	return o.Reason
}

// table aligns its columns.
type table struct {
	right []bool
	gap   string
	rows  [][]string
}

func (t *table) add(cells ...string) {
	for i, c := range cells {
		cells[i] = visible(c)
	}
	t.rows = append(t.rows, cells)
}

// writeSection writes a table with a heading, unless the table has no other row.
func (t *table) writeSection(b *strings.Builder) {
	if len(t.rows) > 1 {
		b.WriteByte('\n')
		t.write(b)
	}
}

func (t *table) write(b *strings.Builder) {
	widths := make([]int, len(t.right))
	for _, row := range t.rows {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	for _, row := range t.rows {
		var line strings.Builder
		for i, c := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if t.right[i] {
				line.WriteString(pad + c)
			} else {
				line.WriteString(c + pad)
			}
			line.WriteString(t.gap)
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
}

// visible removes from a text what could control a terminal, and cuts it to the width of a column.
func visible(text string) string {
	const longest = 80
	clean := sanitized(text)
	if runes := []rune(clean); len(runes) > longest {
		return string(runes[:longest-1]) + "…"
	}
	return clean
}

// sanitized removes from a text what could control a terminal.
func sanitized(text string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, text)
}

func whom(tenant, address string) string {
	if tenant != "" {
		return tenant
	}
	return address
}

func grouped(n int64) string { return reportpage.Grouped(n) }

func share(n, all int64) string { return reportpage.Share(n, all) }

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

func duration(ms int64) string {
	if ms == 0 {
		return "–"
	}
	return limit.DurationText(time.Duration(ms) * time.Millisecond)
}
