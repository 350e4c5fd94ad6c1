package cost

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// pricesOf returns the days of the oldest and of the newest price that the bill uses.
func (b *Bill) pricesOf() (oldest, newest string) {
	for i := range b.Lines {
		if day := b.Lines[i].AsOf; i == 0 {
			oldest, newest = day, day
		} else {
			oldest, newest = min(oldest, day), max(newest, day)
		}
	}
	return oldest, newest
}

// plural returns the number n with the noun what, in the singular or in the plural.
func plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return grouped(n) + " " + what + "s"
}

// Notes returns the assumptions behind the bill, and hints.
func (b *Bill) Notes() []string {
	w, u := &b.Workload, b.Usage
	oldest, newest := b.pricesOf()
	notes := []string{
		fmt.Sprintf("List prices of %s as of %s to %s, not checked against AWS today; without tax, discounts, savings "+
			"plans and free tier, and without what the API itself costs.", w.Region, oldest, newest),
		fmt.Sprintf("A month of %d hours. All cells are in one region and account, and each tenant calls each of "+
			"them. Nothing of this has been measured on AWS.", hours),
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
	return append(notes, b.quotas()...)
}

// quotas returns notes about quotas of AWS that the workload exceeds.
func (b *Bill) quotas() (notes []string) {
	w, u := &b.Workload, b.Usage
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
	return fmt.Sprintf("A month of %s requests/s by %s, in %s, %s", decimal(w.RPS, 3), plural(w.Tenants, "tenant"),
		plural(w.Cells, string(w.Profile)+" cell"), w.Region)
}

// WriteText writes the bill as a table. Below each line stand its price and how its quantity is calculated.
func (b *Bill) WriteText(out io.Writer) error {
	var text strings.Builder
	row := func(usd, service, what, quantity string) {
		fmt.Fprintf(&text, "%14s  %-15s  %-41s  %s\n", usd, service, what, quantity)
	}
	fmt.Fprintf(&text, "%s\n\n", b.Title())
	row("USD", "SERVICE", "LINE", "QUANTITY")
	for i := range b.Lines {
		l := &b.Lines[i]
		row(l.Amount.String(), l.Service, l.What, decimal(l.exact, 3)+" "+l.Unit)
		fmt.Fprintf(&text, "%18s%s: %s\n", "", l.Price, l.How)
	}
	fmt.Fprintf(&text, "%14s  paid for Sluice\n\n", b.Total)
	for _, n := range b.Notes() {
		fmt.Fprintf(&text, "- %s\n", n)
	}
	if _, err := io.WriteString(out, text.String()); err != nil {
		return fmt.Errorf("write the bill: %w", err)
	}
	return nil
}

// report is the bill as JSON. Amounts are strings, in dollars with six digits after the point.
type report struct {
	Title        string   `json:"title"`
	Region       string   `json:"region"`
	PricesOf     string   `json:"pricesOf"` // the day of the oldest price
	PricesTo     string   `json:"pricesTo"` // the day of the newest price
	Environments int64    `json:"environmentsPerCell"`
	MeanMs       string   `json:"billedMilliseconds"`
	Lines        []Line   `json:"lines"`
	Total        Micros   `json:"usd"`
	Notes        []string `json:"notes"`
}

// WriteJSON writes the bill as one JSON value.
func (b *Bill) WriteJSON(out io.Writer) error {
	oldest, newest := b.pricesOf()
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(report{
		Title: b.Title(), Region: b.Workload.Region, PricesOf: oldest, PricesTo: newest,
		Environments: b.Usage.Environments, MeanMs: plainDecimal(b.Usage.MeanMs, 3), Lines: b.Lines, Total: b.Total,
		Notes: b.Notes(),
	}); err != nil {
		return fmt.Errorf("write the bill: %w", err)
	}
	return nil
}

// plainDecimal formats a with at most digits digits after the point, for a program.
func plainDecimal(a float64, digits int) string {
	return strings.TrimRight(strings.TrimRight(strconv.FormatFloat(a, 'f', digits, 64), "0"), ".")
}
