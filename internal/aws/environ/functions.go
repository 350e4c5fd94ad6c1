package environ

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// Common holds the settings that all functions but the authorizer have.
type Common struct {
	LogLevel         slog.Level
	MetricsNamespace string
}

// Shared returns the settings that all functions have.
func (c Common) Shared() Common { return c }

// ControlTables are the names or ARNs of the control tables that a function uses; "" for the others.
type ControlTables struct{ Plans, Tenants, Keys, Cells string }

// Publisher holds the settings of the publisher.
type Publisher struct {
	Common
	Tables    ControlTables // by name; Cells is not used
	Topic     string        // ARN
	KeptQueue string        // URL
}

// Balancer holds the settings of the balancer.
type Balancer struct {
	Common
	Tables    ControlTables // Cells by name; Tenants and Keys are not used
	Topic     string        // ARN
	KeptQueue string        // URL
}

// Applier holds the settings of a cell's applier.
type Applier struct {
	Common
	Cell        string
	ConfigTable string
	Tables      ControlTables // all of them, in one region
	Queue       string        // URL of the cell's queue, from which the messages come
	KeptQueue   string        // URL
}

// Reconcile holds the settings of a cell's reconcile function.
type Reconcile struct {
	Common
	Cell        string
	ConfigTable string
	Tables      ControlTables // all of them, in one region
	Grace       time.Duration
}

// Canary holds the settings of the canary.
type Canary struct {
	Common
	Plans string // name or ARN of the table
	Cells []CellTable
	Wait  time.Duration
}

// CellTable is a cell and one of its tables, by name or ARN: its config table or its counters table.
type CellTable struct{ Cell, Table string }

const (
	maxGrace = time.Hour
	minWait  = time.Second
	maxWait  = 10 * time.Minute
	maxCells = 50 // cells that one canary can watch
)

var (
	topicARN  = shape{":_./-", 20, 512}
	queueURL  = shape{":/._-", 12, 512}
	nameAlone = shape{"_.-", 3, 255} // a table's name without an ARN, as the records of its stream name it
)

// ParsePublisher reads the publisher's settings, as Parse does.
func ParsePublisher(environ []string) (*Publisher, error) {
	s := &Publisher{}
	return parse("publisher", environ, s, s.variables())
}

func (s *Publisher) variables() []variable {
	return append([]variable{
		table("PLANS", &s.Tables.Plans, nameAlone), table("TENANTS", &s.Tables.Tenants, nameAlone),
		table("KEYS", &s.Tables.Keys, nameAlone),
		topic(&s.Topic), keptQueue(&s.KeptQueue),
	}, s.common()...)
}

// ParseBalancer reads the balancer's settings, as Parse does.
func ParseBalancer(environ []string) (*Balancer, error) {
	s := &Balancer{}
	return parse("balancer", environ, s, s.variables())
}

func (s *Balancer) variables() []variable {
	return append([]variable{
		table("CELLS", &s.Tables.Cells, nameAlone), table("PLANS", &s.Tables.Plans, tableName), topic(&s.Topic),
		keptQueue(&s.KeptQueue),
	}, s.common()...)
}

// ParseApplier reads an applier's settings, as Parse does.
func ParseApplier(environ []string) (*Applier, error) {
	s := &Applier{}
	return parse("applier", environ, s, s.variables())
}

func (s *Applier) variables() []variable {
	return append([]variable{
		cell(&s.Cell), configTable(&s.ConfigTable),
		queue("SLUICE_CHANGES_QUEUE", "URL of the cell's queue, from which the messages come.", &s.Queue),
		keptQueue(&s.KeptQueue),
		table("PLANS", &s.Tables.Plans, tableName), table("TENANTS", &s.Tables.Tenants, tableName),
		table("KEYS", &s.Tables.Keys, tableName), table("CELLS", &s.Tables.Cells, tableName),
	}, s.common()...)
}

// ParseReconcile reads the settings of a cell's reconcile, as Parse does.
func ParseReconcile(environ []string) (*Reconcile, error) {
	s := &Reconcile{}
	return parse("reconcile", environ, s, s.variables())
}

func (s *Reconcile) variables() []variable {
	return append([]variable{
		cell(&s.Cell), configTable(&s.ConfigTable),
		table("PLANS", &s.Tables.Plans, tableName), table("TENANTS", &s.Tables.Tenants, tableName),
		table("KEYS", &s.Tables.Keys, tableName),
		table("CELLS", &s.Tables.Cells, tableName),
		{"SLUICE_GRACE", "2m", false,
			"How old a change must be before reconcile reports that a cell lacks it: a younger change may " +
				"be on its way.",
			func(v string) string { return within(&s.Grace, v, 0, maxGrace) }},
	}, s.common()...)
}

// ParseCanary reads the canary's settings, as Parse does.
func ParseCanary(environ []string) (*Canary, error) {
	s := &Canary{}
	return parse("canary", environ, s, s.variables())
}

func (s *Canary) variables() []variable {
	return append([]variable{
		table("PLANS", &s.Plans, tableName),
		{"SLUICE_CANARY_CELLS", "", true,
			"The cells that are watched, separated by commas: for each, its id, `=`, and the name or ARN of " +
				"its config table, such as `eu-1=config-eu-1`.",
			func(v string) string { return cells(&s.Cells, v, "config") }},
		{"SLUICE_CANARY_WAIT", "30s", false,
			"How long the canary waits until all cells have its change. It must be less than the function's " +
				"timeout.",
			func(v string) string { return within(&s.Wait, v, minWait, maxWait) }},
	}, s.common()...)
}

// parse reads variables into the fields to which they belong.
func parse[S any](function string, environ []string, into *S, variables []variable) (*S, error) {
	p := &problems{}
	p.read(function, variables, environ)
	if err := p.err(); err != nil {
		return nil, err
	}
	return into, nil
}

// FunctionTable returns the variables of a function other than the authorizer as a Markdown table for the
// documentation, or "" if there is no such function. The table of ops has only the variables that the authorizer does
// not have.
func FunctionTable(function string) string {
	switch function {
	case "publisher":
		return markdown(new(Publisher).variables())
	case "balancer":
		return markdown(new(Balancer).variables())
	case "applier":
		return markdown(new(Applier).variables())
	case "reconcile":
		return markdown(new(Reconcile).variables())
	case "canary":
		return markdown(new(Canary).variables())
	case "archiver":
		return markdown(new(Archiver).variables())
	case "anchor":
		return markdown(new(Anchor).variables())
	case "admin":
		return markdown(new(Admin).variables())
	case "worker":
		return markdown(new(Worker).variables())
	case "ops": // only those that the authorizer does not have
		return markdown(new(Ops).variables())
	}
	return ""
}

func (c *Common) common() []variable {
	return []variable{
		{"SLUICE_METRICS_NAMESPACE", "Sluice", false, "The namespace of the metrics in CloudWatch.",
			func(v string) string { return namespace(&c.MetricsNamespace, v) }},
		{"SLUICE_LOG_LEVEL", "info", false, "`debug`, `info`, `warn` or `error`.",
			func(v string) string { return level(&c.LogLevel, v) }},
	}
}

func cell(to *string) variable {
	return variable{"SLUICE_CELL", "", true, "The cell's id.",
		func(v string) string { return match(to, v, cellName, "1 to 64 of A-Z a-z 0-9 . _ -") }}
}

func configTable(to *string) variable {
	return variable{"SLUICE_CONFIG_TABLE", "", true, "The cell's config table, by name or ARN.",
		func(v string) string { return match(to, v, tableName, "a table's name or ARN") }}
}

func topic(to *string) variable {
	return variable{"SLUICE_TOPIC", "", true, "ARN of the topic on which changes are published.",
		func(v string) string {
			if !strings.HasPrefix(v, "arn:") || strings.HasSuffix(v, ".fifo") {
				return "must be the ARN of a standard topic"
			}
			return match(to, v, topicARN, "the ARN of a standard topic")
		}}
}

func keptQueue(to *string) variable {
	return queue("SLUICE_KEPT_QUEUE",
		"URL of the SQS queue for dead letters: messages and records that cannot be processed.", to)
}

// queue returns the variable of a standard queue.
func queue(name, about string, to *string) variable {
	return variable{name, "", true, about,
		func(v string) string {
			if !strings.HasPrefix(v, "https://") && !strings.HasPrefix(v, "http://") || strings.HasSuffix(v, ".fifo") {
				return "must be the URL of a standard queue"
			}
			return match(to, v, queueURL, "the URL of a standard queue")
		}}
}

// table returns the variable of a control table.
func table(name string, to *string, of shape) variable {
	want := "a table's name or ARN"
	if of == nameAlone {
		want = "a table's name"
	}
	return variable{"SLUICE_" + name + "_TABLE", "", true, "The control table of " + strings.ToLower(name) + ", " +
		strings.TrimPrefix(want, "a table's ") + ".",
		func(v string) string { return match(to, v, of, want) }}
}

func within(to *time.Duration, v string, least, most time.Duration) string {
	d, err := time.ParseDuration(v)
	if err != nil || d < least || d > most {
		return fmt.Sprintf("must be a time such as 30s, %s to %s", least, most)
	}
	*to = d
	return ""
}

// cells reads cells with a table of each. such names the kind of the tables.
func cells(to *[]CellTable, v, such string) string {
	want := "must be 1 to 50 cells, each once, such as eu-1=" + such + "-eu-1, separated by commas"
	var all []CellTable
	for one := range strings.SplitSeq(v, ",") {
		id, table, _ := strings.Cut(strings.TrimSpace(one), "=")
		if !cellName.fits(id) || !tableName.fits(table) || len(all) == maxCells ||
			slices.ContainsFunc(all, func(c CellTable) bool { return c.Cell == id }) {
			return want
		}
		all = append(all, CellTable{id, table})
	}
	*to = all
	return ""
}
