package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
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
	t := newTable("<>>")
	for _, row := range r.totals() {
		t.add(row.Label, grouped(row.N), reportpage.Share(row.N, row.All))
	}
	t.write(b)
	if l := r.LongestWait; l != nil {
		fmt.Fprintf(b, "\nLongest wait: %s by limit %s, for %s at %s.\n", duration(l.MS), l.Limit,
			visible(cmp.Or(l.Tenant, l.Address)), clock(l.At))
	}
}

func logNames(logs []string) string {
	if len(logs) > 3 {
		return strconv.Itoa(len(logs)) + " logs"
	}
	return visible(strings.Join(logs, ", "))
}

// total is a row of the totals. Key identifies it on the HTML page.
type total struct {
	Key, Label string
	N, All     int64 // All is what N is shown as a share of; 0 for none
}

// totals returns the rows to show: always the first two, and the others if their numbers are not 0.
func (r *Report) totals() []total {
	rows := []total{
		{"allowed", "Allowed", r.Allowed, r.Requests}, {"denied", "Denied", r.Denied, r.Requests},
		{"shadow_denied", "Allowed, but a shadow limit would deny", r.ShadowDenied, r.Requests},
		{"unknown_tenant", "Refused: unknown tenant", r.UnknownTenant, r.Requests},
		{"suspended", "Refused: tenant suspended", r.Suspended, r.Requests},
		{"no_route", "Not routed", r.NoRoute, r.Requests},
	}
	return append(rows[:2:2], slices.DeleteFunc(rows[2:], func(t total) bool { return t.N == 0 })...)
}

func (r *Report) textLimits(b *strings.Builder) {
	t := newTable("<<>>>>><")
	otherReasons := false
	t.add("LIMIT", "FROM", "APPLIED", "ALLOWED", "DENIED", "SHADOW", "LONGEST WAIT", "RULE")
	for i := range r.Limits {
		l := &r.Limits[i]
		rule := l.Rule
		if l.Mode != "enforce" {
			rule += " (" + l.Mode + ")"
		}
		t.add(l.ID, l.From(), grouped(l.Applied), grouped(l.Allowed), grouped(l.Denied), grouped(l.ShadowDenied),
			duration(l.LongestWaitMS), rule)
		otherReasons = otherReasons || l.Applied > l.Allowed+l.Denied+l.ShadowDenied
	}
	t.writeSection(b)
	if otherReasons {
		b.WriteString("APPLIED also counts requests that were denied or refused for another reason.\n")
	}
}

// From says where in the plans file the limit is defined.
func (l *LimitReport) From() string { return strings.TrimSpace(l.Origin + " " + l.Plan) }

func textRanking(b *strings.Builder, title string, r *Ranking) {
	t := newTable("<>>>>><")
	t.add(title, "REQUESTS", "ALLOWED", "DENIED", "SHADOW", "LONGEST WAIT", "FIRST DENIED")
	for i := range r.Top {
		p := &r.Top[i]
		t.add(p.Name+p.Note(), grouped(p.Requests), grouped(p.Allowed), grouped(p.Denied), grouped(p.ShadowDenied),
			duration(p.LongestWaitMS), clock(p.FirstDenied))
	}
	if o := r.Others; o.Count > 0 {
		t.add(r.OthersName(), grouped(o.Requests), grouped(o.Allowed), grouped(o.Denied), grouped(o.ShadowDenied), "",
			"")
	}
	t.writeSection(b)
}

// Note says what is special about a tenant.
func (p *Person) Note() string {
	switch {
	case p.Status != "":
		return " (" + p.Status + ")"
	case p.Plan != "":
		return " (plan " + p.Plan + ")"
	}
	return ""
}

// OthersName returns the name of the row for all that are not listed.
func (r *Ranking) OthersName() string {
	if r.Exact {
		return grouped(r.Others.Count) + " others"
	}
	return "others"
}

func (r *Report) textMinutes(b *strings.Builder) {
	t := newTable("<>><<")
	t.add("WORST MINUTES", "REQUESTS", "DENIED", "MOST BY LIMIT", "MOST FOR")
	for i := range r.WorstMinutes {
		m := &r.WorstMinutes[i]
		t.add(clock(m.At), grouped(m.Requests), grouped(m.Denied), m.Limit+" ("+grouped(m.LimitDenied)+")", m.Most())
	}
	t.writeSection(b)
}

// Most returns who was denied most in the minute, with the number.
func (m *Minute) Most() string {
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
		i := slices.IndexFunc(accesslog.Reasons(), func(why accesslog.Reason) bool { return why.String() == o.Reason })
		fmt.Fprintf(&b, "\n  %s:%d: %s: %q", visible(o.Log), o.Line, accesslog.Reasons()[i].Explain(), o.Text)
	}
	b.WriteString("\n" + formats)
	return errors.New(b.String())
}

// table aligns its columns.
type table struct {
	align string // "<" or ">" for each column
	rows  [][]string
}

func newTable(align string) *table { return &table{align: align} }

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
	widths := make([]int, len(t.align))
	for _, row := range t.rows {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	for _, row := range t.rows {
		line := ""
		for i, c := range row {
			if t.align[i] == '>' {
				line += fmt.Sprintf("%*s  ", widths[i], c)
			} else {
				line += fmt.Sprintf("%-*s  ", widths[i], c)
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
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

func grouped(n int64) string { return reportpage.Grouped(n) }

// clock formats a time; the zero time is "".
func clock(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

func duration(ms int64) string {
	if ms == 0 {
		return "–"
	}
	return limit.DurationText(time.Duration(ms) * time.Millisecond)
}
