package cost

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
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

// daysOld is how many days before now a day is; below 0 if it is after.
func daysOld(day, now time.Time) int64 {
	return int64(now.UTC().Truncate(24*time.Hour).Sub(day) / (24 * time.Hour))
}

// aged is a day with how long before now it is: in days up to two months, and then in whole months.
func aged(day, now time.Time) string {
	text, days := day.Format(time.DateOnly), daysOld(day, now)
	switch {
	case days < 0:
		return text + " (a day that is still to come)"
	case days < 62:
		return fmt.Sprintf("%s (%s old)", text, plural(days, "day"))
	default:
		return fmt.Sprintf("%s (%s old)", text, plural(days*12/365, "month"))
	}
}

// plural is n of what, in words for one and for others.
func plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return grouped(n) + " " + what + "s"
}

// Notes are what to know beside the numbers. Ages of prices count up to now.
func (b *Bill) Notes(now time.Time) []string {
	w, u := &b.Workload, b.Usage
	free := "no free tier"
	if w.FreeTier {
		free = "what AWS gives away each month without an end taken off, as if nothing else used it"
	}
	oldest, newest := b.PricesOf()
	asOf := aged(oldest, now)
	if newest.After(oldest) {
		asOf += " to " + aged(newest, now)
	}
	notes := []string{
		fmt.Sprintf("List prices of %s as of %s, not checked against AWS today: without tax, discounts and savings "+
			"plans; %s.",
			w.Region, asOf, free),
		fmt.Sprintf("A month of %d hours. All cells are in one region and account, and each tenant asks in each of "+
			"them. Nothing of this has been measured on AWS.", hours),
	}
	for _, f := range b.Prices.From {
		notes = append(notes, fmt.Sprintf("Prices from %s, as of %s.", f.File, f.Date.Format(time.DateOnly)))
	}
	if w.RPS.Sign() == 0 {
		return notes
	}
	how := fmt.Sprintf("%d ms without a call of a store, %d ms more with one", localMs,
		map[Profile]int{Small: dynamoMs, Full: redisMs}[w.Profile])
	if w.Duration > 0 {
		how = "as given"
	}
	notes = append(notes, fmt.Sprintf("A request of the authorizer is billed with %s ms (%s: assumed; the processor "+
		"time measured here is 0.02 ms). At peak %d environments in each cell.", decimal(u.MeanMs, 2), how,
		u.Environments))
	notes = append(notes, "Tenants ask alike, and in each environment alike: leases save more where a few ask most, "+
		"or where Lambda uses the same environments again.")
	if u.denied.Sign() > 0 {
		notes = append(notes, "API Gateway does not bill what an authorizer denies; without Sluice those requests "+
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
	notes = append(notes, fmt.Sprintf("CloudTrail does not record calls of the authorizer; if it did, they would "+
		"cost $%s more.", micros(trail)))
	return append(notes, b.quotas()...)
}

// quotas are limits of AWS that the workload is beyond.
func (b *Bill) quotas() (notes []string) {
	w, u := &b.Workload, b.Usage
	if product(w.RPS, w.Peak).Cmp(num(10_000)) > 0 {
		notes = append(notes, "Beyond a default quota: API Gateway takes 10,000 requests/s in a region and account.")
	}
	if u.Environments*w.Cells > 1000 {
		notes = append(notes, "Beyond a default quota: Lambda runs 1,000 environments at once in a region and account.")
	}
	if w.Profile == Small && over(product(u.calls, w.Peak), num(w.Tenants)).Cmp(num(1000)) > 0 {
		notes = append(notes, "Beyond a limit: DynamoDB takes 1,000 write units/s for an item, and a tenant needs "+
			"more; a full cell does not.")
	}
	return notes
}

// Title is what the bill is for.
func (b *Bill) Title() string {
	w := &b.Workload
	return fmt.Sprintf("A month of %s requests/s by %s, in %s, %s API, %s", decimal(w.RPS, 3),
		plural(w.Tenants, "tenant"),
		plural(w.Cells, string(w.Profile)+" cell"), map[API]string{REST: "REST", HTTP: "HTTP",
			WebSocket: "WebSocket"}[w.API], w.Region)
}

// WriteText writes the bill as a table, with the comparison below it where there is one. Ages of prices count up to
// now.
func (b *Bill) WriteText(out io.Writer, c *Comparison, now time.Time) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n\n", b.Title())
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "USD\tSERVICE\tLINE\tQUANTITY\tPRICE\tHOW")
	row := func(l *Line) {
		fmt.Fprintf(table, "%14s\t%s\t%s\t%s %s\t%s\t%s\n", l.Amount, l.Service, l.What, l.Quantity, l.Unit, l.Price,
			l.How)
	}
	for i := range b.Lines {
		if !b.Lines[i].Anyway {
			row(&b.Lines[i])
		}
	}
	fmt.Fprintf(table, "%14s\tpaid for Sluice\t\t\t\t\n", b.Total)
	if b.Anyway > 0 {
		for i := range b.Lines {
			if b.Lines[i].Anyway {
				row(&b.Lines[i])
			}
		}
		fmt.Fprintf(table, "%14s\tpaid for the API anyway, without Sluice\t\t\t\t\n", b.Anyway)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the bill: %w", err)
	}
	fmt.Fprintln(&text)
	for _, n := range b.Notes(now) {
		fmt.Fprintf(&text, "- %s\n", n)
	}
	if c != nil {
		if err := c.writeText(&text); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(out, trimmed(text.String())); err != nil {
		return fmt.Errorf("write the bill: %w", err)
	}
	return nil
}

func (c *Comparison) writeText(out io.Writer) error {
	fmt.Fprintln(out, "\nBeside the bill of a published design review, for the same requests")
	fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PRINTED\tWHOLE MONTH\tOURS\tLINE\tWHY")
	for _, l := range c.Lines {
		said := l.Low.whole()
		if l.High != l.Low {
			said += "-" + l.High.whole()
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", said, l.Monthly.whole(), l.Ours.whole(), l.Line, l.Why)
	}
	fmt.Fprintf(table, "%s-%s\t%s\t%s\tsum\t\n", c.Low.whole(), c.High.whole(), c.Monthly.whole(), c.Ours.whole())
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the comparison: %w", err)
	}
	fmt.Fprintln(out)
	for _, n := range c.Notes {
		fmt.Fprintf(out, "- %s\n", n)
	}
	return nil
}

// whole is the amount in whole dollars, rounded half up.
func (m Micros) whole() string { return grouped((int64(m) + 500_000) / 1_000_000) }

// trimmed is text without blanks at the ends of lines, which a table leaves.
func trimmed(text string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " ")
	}
	return strings.Join(lines, "\n")
}

// report is the bill as JSON. Amounts are strings of dollars with six digits after the point.
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
	Published    *Comparison  `json:"published,omitempty"`
}

type reportLine struct {
	Line
	Published string `json:"priceFrom"`
	AsOf      string `json:"priceAsOf"` // the day
}

// WriteJSON writes the bill, and the comparison where there is one, as one JSON value. Ages of prices count up to now.
func (b *Bill) WriteJSON(out io.Writer, c *Comparison, now time.Time) error {
	w, u := &b.Workload, b.Usage
	oldest, newest := b.PricesOf()
	r := report{
		Title: b.Title(), Region: w.Region, RPS: plainDecimal(w.RPS.FloatString(6)),
		PricesOf: oldest.Format(time.DateOnly), PricesTo: newest.Format(time.DateOnly), OldestDays: daysOld(oldest,
			now),
		Tenants: w.Tenants, Cells: w.Cells, Profile: w.Profile, API: w.API, Environments: u.Environments,
		MeanMs: plainDecimal(u.MeanMs.FloatString(3)), Total: b.Total, Anyway: b.Anyway, Notes: b.Notes(now),
		Published: c,
	}
	for _, l := range b.Lines {
		line := l
		line.Quantity = plainDecimal(l.exact.FloatString(6))
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

// plainDecimal drops what says nothing behind the point.
func plainDecimal(s string) string { return strings.TrimRight(strings.TrimRight(s, "0"), ".") }
