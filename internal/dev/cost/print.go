package cost

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// PricesOf returns the days of the oldest and of the newest price that the bill uses.
func (b *Bill) PricesOf() (oldest, newest time.Time) {
	for i, l := range b.Lines {
		asOf := b.Prices.prices[l.id].asOf[b.Workload.Region]
		if i == 0 || asOf.Before(oldest) {
			oldest = asOf
		}
		if i == 0 || asOf.After(newest) {
			newest = asOf
		}
	}
	return oldest, newest
}

// daysOld returns the number of days from day to now; below 0 if day is in the future.
func daysOld(day, now time.Time) int64 {
	return int64(now.UTC().Truncate(24*time.Hour).Sub(day) / (24 * time.Hour))
}

// aged formats a day with its age: in days up to two months, and in whole months after that.
func aged(day, now time.Time) string {
	text, days := day.Format(time.DateOnly), daysOld(day, now)
	switch {
	case days < 0:
		return text + " (in the future)"
	case days < 62:
		return fmt.Sprintf("%s (%s old)", text, plural(days, "day"))
	default:
		return fmt.Sprintf("%s (%s old)", text, plural(days*12/365, "month"))
	}
}

// plural returns the number n with the noun what, in the singular or in the plural.
func plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return grouped(n) + " " + what + "s"
}

// Notes returns the assumptions behind the bill, and hints. It calculates the ages of prices as of now.
func (b *Bill) Notes(now time.Time) []string {
	w, u := &b.Workload, b.Usage
	free := "no free tier"
	if w.FreeTier {
		free = "with AWS's monthly free tier that has no end date, as if nothing else in the account used it"
	}
	oldest, newest := b.PricesOf()
	asOf := aged(oldest, now)
	if newest.After(oldest) {
		asOf += " to " + aged(newest, now)
	}
	notes := []string{
		fmt.Sprintf("List prices of %s as of %s, not checked against AWS today; without tax, discounts and savings "+
			"plans; %s.", w.Region, asOf, free),
		fmt.Sprintf("A month of %d hours. All cells are in one region and account, and each tenant calls each of "+
			"them. Nothing of this has been measured on AWS.", hours),
	}
	for _, f := range b.Prices.From {
		notes = append(notes, fmt.Sprintf("Prices from %s, as of %s.", f.File, f.Date.Format(time.DateOnly)))
	}
	if w.RPS == 0 {
		return notes
	}
	how := fmt.Sprintf("assumed: %d ms without a call to a store, %d ms more with one; the processor time that was "+
		"measured is 0.02 ms", localMs,
		map[Profile]int{Small: dynamoMs, Full: redisMs}[w.Profile])
	if w.Duration > 0 {
		how = "as given by --duration"
	}
	notes = append(notes, fmt.Sprintf("The authorizer is billed %s ms for each request (%s). At peak there are %d "+
		"environments in each cell.", decimal(u.MeanMs, 2), how,
		u.Environments))
	notes = append(notes, "All tenants send equally many requests, spread evenly over the environments. Leases save "+
		"more calls if a few tenants send most requests, or if Lambda prefers some environments.")
	if u.denied > 0 {
		notes = append(notes, "API Gateway does not bill requests that an authorizer denies. Without Sluice they "+
			"would be billed, and reach the backend.")
	}
	requests := b.month(u.perCell)
	if w.PlatformLogs {
		b := *b
		b.Workload.PlatformLogs = false
		if without, err := New(&b.Workload, b.Prices); err == nil {
			notes = append(notes, fmt.Sprintf("Lambda's own log lines are kept; without them (LoggingConfig: JSON, "+
				"SystemLogLevel WARN; --platform-logs=false) the bill is $%s lower.", b.Total-without.Total))
		}
	}
	trail := b.Prices.prices["cloudtrail.data"].amount(w.Region, requests, w.FreeTier)
	notes = append(notes, fmt.Sprintf("CloudTrail is assumed not to record invocations of the authorizer. Recording "+
		"them would cost $%s more.", micros(trail)))
	return append(notes, b.quotas()...)
}

// quotas returns notes about quotas of AWS that the workload exceeds.
func (b *Bill) quotas() (notes []string) {
	w, u := &b.Workload, b.Usage
	if w.RPS*w.Peak > 10_000 {
		notes = append(notes, "Exceeds a default quota: API Gateway admits 10,000 requests/s in a region and account.")
	}
	if u.Environments*w.Cells > 1000 {
		notes = append(notes, "Exceeds a default quota: Lambda runs 1,000 environments at once in a region and "+
			"account.")
	}
	if w.Profile == Small && u.calls*w.Peak/float64(w.Tenants) > 1000 {
		notes = append(notes, "Exceeds a limit: DynamoDB accepts 1,000 write units/s for one item, and a tenant needs "+
			"more. A full cell does not have this limit.")
	}
	return notes
}

// Title describes the workload of the bill in one line.
func (b *Bill) Title() string {
	w := &b.Workload
	return fmt.Sprintf("A month of %s requests/s by %s, in %s, %s API, %s", decimal(w.RPS, 3),
		plural(w.Tenants, "tenant"),
		plural(w.Cells, string(w.Profile)+" cell"), map[API]string{REST: "REST", HTTP: "HTTP",
			WebSocket: "WebSocket"}[w.API], w.Region)
}

const (
	textWidth    = 120 // most characters in a line of WriteText, unless one word is longer
	detailIndent = 18  // blanks before the details of a row
)

// WriteText writes the bill as a table. It calculates the ages of prices as of now.
func (b *Bill) WriteText(out io.Writer, now time.Time) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n\n", b.Title())
	t := newDetailedTable("USD\tSERVICE\tLINE\tQUANTITY")
	for i := range b.Lines {
		if !b.Lines[i].Anyway {
			t.billLine(&b.Lines[i])
		}
	}
	t.row(fmt.Sprintf("%14s\tpaid for Sluice\t\t", b.Total), "")
	if b.Anyway > 0 {
		for i := range b.Lines {
			if b.Lines[i].Anyway {
				t.billLine(&b.Lines[i])
			}
		}
		t.row(fmt.Sprintf("%14s\tAPI Gateway\tpaid for the API anyway, without Sluice\t", b.Anyway), "")
	}
	if err := t.write(&text); err != nil {
		return fmt.Errorf("write the bill: %w", err)
	}
	fmt.Fprintln(&text)
	for _, n := range b.Notes(now) {
		writeIndented(&text, "- ", n)
	}
	if _, err := io.WriteString(out, text.String()); err != nil {
		return fmt.Errorf("write the bill: %w", err)
	}
	return nil
}

// detailedTable is a table whose rows have details, which are price below each row, so that lines stay short.
type detailedTable struct {
	cells   strings.Builder
	writer  *tabwriter.Writer
	details []string // of each row, the head first
}

func newDetailedTable(head string) *detailedTable {
	t := &detailedTable{}
	t.writer = tabwriter.NewWriter(&t.cells, 0, 0, 2, ' ', 0)
	t.row(head, "")
	return t
}

// row adds a row, whose cells are separated by tabs.
func (t *detailedTable) row(cells, details string) {
	fmt.Fprintln(t.writer, cells)
	t.details = append(t.details, details)
}

func (t *detailedTable) billLine(l *Line) {
	t.row(fmt.Sprintf("%14s\t%s\t%s\t%s %s", l.Amount, l.Service, l.What, l.Quantity, l.Unit), l.Price+": "+l.How)
}

func (t *detailedTable) write(out *strings.Builder) error {
	if err := t.writer.Flush(); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSuffix(t.cells.String(), "\n"), "\n")
	for i, line := range lines {
		fmt.Fprintln(out, strings.TrimRight(line, " "))
		if t.details[i] != "" {
			writeIndented(out, strings.Repeat(" ", detailIndent), t.details[i])
		}
	}
	return nil
}

// writeIndented writes a text in lines of at most textWidth characters. The first line begins with label, and the
// others with as many blanks.
func writeIndented(out *strings.Builder, label, text string) {
	line, empty := label, true
	for word := range strings.FieldsSeq(text) {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > textWidth {
			fmt.Fprintln(out, line)
			line, empty = strings.Repeat(" ", len(label)), true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	fmt.Fprintln(out, line)
}

// report is the bill as JSON. Amounts are strings, in dollars with six digits after the point.
type report struct {
	Title        string       `json:"title"`
	Region       string       `json:"region"`
	PricesOf     string       `json:"pricesOf"` // the day of the oldest price
	PricesTo     string       `json:"pricesTo"` // the day of the newest price
	OldestDays   int64        `json:"oldestPriceDays"`
	RPS          string       `json:"requestsPerSecond"`
	Tenants      int64        `json:"tenants"`
	Cells        int64        `json:"cells"`
	Profile      Profile      `json:"profile"`
	API          API          `json:"api"`
	Environments int64        `json:"environmentsPerCell"`
	MeanMs       string       `json:"billedMilliseconds"`
	Lines        []reportLine `json:"lines"`
	Total        Micros       `json:"usd"`
	Anyway       Micros       `json:"usdWithoutSluice"`
	Notes        []string     `json:"notes"`
}

type reportLine struct {
	Line
	Published string `json:"priceFrom"`
	AsOf      string `json:"priceAsOf"` // the day
}

// WriteJSON writes the bill as one JSON value. It calculates the ages of prices as of now.
func (b *Bill) WriteJSON(out io.Writer, now time.Time) error {
	w, u := &b.Workload, b.Usage
	oldest, newest := b.PricesOf()
	r := report{
		Title: b.Title(), Region: w.Region, RPS: plainDecimal(w.RPS, 6),
		PricesOf: oldest.Format(time.DateOnly), PricesTo: newest.Format(time.DateOnly), OldestDays: daysOld(oldest,
			now),
		Tenants: w.Tenants, Cells: w.Cells, Profile: w.Profile, API: w.API, Environments: u.Environments,
		MeanMs: plainDecimal(u.MeanMs, 3), Total: b.Total, Anyway: b.Anyway, Notes: b.Notes(now),
	}
	for _, l := range b.Lines {
		line := l
		line.Quantity = plainDecimal(l.exact, 6)
		p := b.Prices.prices[l.id]
		r.Lines = append(r.Lines, reportLine{line, p.published, p.asOf[w.Region].Format(time.DateOnly)})
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("write the bill: %w", err)
	}
	return nil
}

// plainDecimal formats a with at most digits digits after the point, for a program.
func plainDecimal(a float64, digits int) string {
	return strings.TrimRight(strings.TrimRight(strconv.FormatFloat(a, 'f', digits, 64), "0"), ".")
}
