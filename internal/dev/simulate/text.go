package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluicelimits/sluice/internal/dev/accesslog"
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
	var rows [][]string
	for i, t := range []struct {
		label string
		n     int64
	}{
		{"Allowed", r.Allowed}, {"Denied", r.Denied},
		{"Allowed, but a shadow limit would deny", r.ShadowDenied}, {"Refused: unknown tenant", r.UnknownTenant},
		{"Refused: tenant suspended", r.Suspended}, {"Not routed", r.NoRoute},
	} {
		if i < 2 || t.n > 0 {
			rows = append(rows, []string{t.label, grouped(t.n), share(t.n, r.Requests)})
		}
	}
	writeTable(b, rows)
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

func (r *Report) textLimits(b *strings.Builder) {
	rows := [][]string{{"LIMIT", "FROM", "APPLIED", "ALLOWED", "DENIED", "SHADOW", "LONGEST WAIT", "RULE"}}
	otherReasons := false
	for i := range r.Limits {
		l := &r.Limits[i]
		rule := l.Rule
		if l.Mode != "enforce" {
			rule += " (" + l.Mode + ")"
		}
		rows = append(rows, []string{l.ID, strings.TrimSpace(l.Origin + " " + l.Plan), grouped(l.Applied),
			grouped(l.Allowed), grouped(l.Denied), grouped(l.ShadowDenied), duration(l.LongestWaitMS), rule})
		otherReasons = otherReasons || l.Applied > l.Allowed+l.Denied+l.ShadowDenied
	}
	writeSection(b, rows)
	if otherReasons {
		b.WriteString("APPLIED also counts requests that were denied or refused for another reason.\n")
	}
}

func textRanking(b *strings.Builder, title string, r *Ranking) {
	rows := [][]string{{title, "REQUESTS", "ALLOWED", "DENIED", "SHADOW", "LONGEST WAIT", "FIRST DENIED"}}
	for i := range r.Top {
		p := &r.Top[i]
		name := p.Name
		switch {
		case p.Status != "":
			name += " (" + p.Status + ")"
		case p.Plan != "":
			name += " (plan " + p.Plan + ")"
		}
		rows = append(rows, []string{name, grouped(p.Requests), grouped(p.Allowed), grouped(p.Denied),
			grouped(p.ShadowDenied), duration(p.LongestWaitMS), clock(p.FirstDenied)})
	}
	if o := r.Others; o.Count > 0 {
		name := "others"
		if r.Exact {
			name = grouped(o.Count) + " others"
		}
		rows = append(rows, []string{name, grouped(o.Requests), grouped(o.Allowed), grouped(o.Denied),
			grouped(o.ShadowDenied), "", ""})
	}
	writeSection(b, rows)
}

func (r *Report) textMinutes(b *strings.Builder) {
	rows := [][]string{{"WORST MINUTES", "REQUESTS", "DENIED", "MOST BY LIMIT", "MOST FOR"}}
	for i := range r.WorstMinutes {
		m := &r.WorstMinutes[i]
		most := m.Address + " (" + grouped(m.AddressDenied) + ")"
		if m.Tenant != "" {
			most = m.Tenant + " (" + grouped(m.TenantDenied) + ")"
		}
		rows = append(rows, []string{clock(m.At), grouped(m.Requests), grouped(m.Denied),
			m.Limit + " (" + grouped(m.LimitDenied) + ")", most})
	}
	writeSection(b, rows)
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

// writeSection writes a table with a heading, unless it has no other row.
func writeSection(b *strings.Builder, rows [][]string) {
	if len(rows) > 1 {
		b.WriteByte('\n')
		writeTable(b, rows)
	}
}

func writeTable(b *strings.Builder, rows [][]string) {
	tabs := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, cells := range rows {
		for i := range cells {
			cells[i] = visible(cells[i])
		}
		fmt.Fprintln(tabs, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	_ = tabs.Flush() // a strings.Builder returns no error
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

// grouped returns the number with its thousands separated.
func grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// share returns n in percent of all, with one decimal.
func share(n, all int64) string {
	if all == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(all))
}

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
