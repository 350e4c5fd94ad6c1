package bench

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/cost"
)

// idleCostFigure returns what the default deployment costs in a month without a request, as sluice cost computes it.
// Nothing is measured.
func idleCostFigure(bool) (Result, error) {
	var r Result
	prices, err := cost.ListPrices()
	if err != nil {
		return r, err
	}
	w := cost.NewWorkload(0)
	bill, err := cost.New(&w, prices)
	if err != nil {
		return r, err
	}
	var sum cost.Micros
	var parts []string
	by := map[string]cost.Micros{}
	for _, l := range bill.Lines {
		if l.Anyway || strings.HasPrefix(l.What, "authorizer") {
			return r, fmt.Errorf("an idle deployment has the line %s, %s", l.Service, l.What)
		}
		service := l.Service
		if service == "CloudWatch" && (l.What == "metrics" || l.What == "alarms") {
			service += " " + l.What
		}
		if by[service] == 0 {
			parts = append(parts, service)
		}
		by[service] += l.Amount
		sum += l.Amount
	}
	if sum != bill.Total || sum == 0 {
		return r, errors.New("the bill's total is 0 or not the sum of its lines")
	}
	for i, service := range parts {
		parts[i] = service + " " + by[service].String()
	}
	r.Value = float64(bill.Total) / 1e6
	oldest, newest := bill.PricesOf()
	r.note("%s; prices as of %s to %s: %s",
		bill.Title(), oldest.Format(time.DateOnly), newest.Format(time.DateOnly), strings.Join(parts, ", "))
	r.note("%.1f metrics, by the hours in which they are written, %d used by alarms",
		bill.Usage.Metrics, bill.Usage.AlarmMetrics)
	return r, nil
}
