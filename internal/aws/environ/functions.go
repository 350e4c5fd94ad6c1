package environ

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"
)

// The settings of each function but the authorizer. The tag env names the variable of a field, without [prefix]: see
// settings. Of Tables it names the control tables that the function has; ":name" says that the variable must be the
// name of the table, as the records of its stream name it, and not its ARN.
type (
	// Common holds the settings that all functions but the authorizer have.
	Common struct {
		MetricsNamespace string     `env:"METRICS_NAMESPACE"`
		LogLevel         slog.Level `env:"LOG_LEVEL"`
	}

	// ControlTables are the names or ARNs of the control tables that a function uses; "" for the others.
	ControlTables struct{ Plans, Tenants, Keys, Cells string }

	// Publisher holds the settings of the publisher.
	Publisher struct {
		Tables    ControlTables `env:"PLANS:name TENANTS:name KEYS:name"`
		Topic     string        `env:"TOPIC"`      // ARN
		KeptQueue string        `env:"KEPT_QUEUE"` // URL
		Common
	}

	// Balancer holds the settings of the balancer.
	Balancer struct {
		Tables    ControlTables `env:"CELLS:name PLANS"`
		Topic     string        `env:"TOPIC"`      // ARN
		KeptQueue string        `env:"KEPT_QUEUE"` // URL
		Common
	}

	// Applier holds the settings of a cell's applier.
	Applier struct {
		Cell        string        `env:"CELL"`
		ConfigTable string        `env:"CONFIG_TABLE"`
		Queue       string        `env:"CHANGES_QUEUE"` // URL of the cell's queue, from which the messages come
		KeptQueue   string        `env:"KEPT_QUEUE"`    // URL
		Tables      ControlTables `env:"PLANS TENANTS KEYS CELLS"`
		Common
	}

	// Reconcile holds the settings of a cell's reconcile function.
	Reconcile struct {
		Cell        string        `env:"CELL"`
		ConfigTable string        `env:"CONFIG_TABLE"`
		Tables      ControlTables `env:"PLANS TENANTS KEYS CELLS"`
		Grace       time.Duration `env:"GRACE"`
		Common
	}

	// Canary holds the settings of the canary.
	Canary struct {
		Plans string        `env:"PLANS_TABLE"` // name or ARN
		Cells []CellTable   `env:"CANARY_CELLS"`
		Wait  time.Duration `env:"CANARY_WAIT"`
		Common
	}

	// Archiver holds the settings of the archiver.
	Archiver struct {
		Tables     ControlTables `env:"PLANS:name TENANTS:name KEYS:name CELLS:name"`
		Operations string        `env:"OPERATIONS_TABLE:name"`
		Bucket     string        `env:"AUDIT_BUCKET"` // its default retention locks each object
		Common
	}

	// Anchor holds the settings of the function that makes the anchors of the audit trail.
	Anchor struct {
		Tables     ControlTables `env:"PLANS TENANTS KEYS CELLS"`
		Operations string        `env:"OPERATIONS_TABLE"`
		Key        string        `env:"ANCHOR_KEY"` // ARN of the KMS key
		Bucket     string        `env:"AUDIT_BUCKET"`
		Common
	}

	// Worker holds the settings of a worker.
	Worker struct {
		Queue      string        `env:"QUEUE"`  // URL
		Target     string        `env:"TARGET"` // name or ARN of a function
		Limit      string        `env:"LIMIT"`  // in the form that package pacer reads
		Spread     bool          `env:"SPREAD"`
		Parallel   int           `env:"PARALLEL"`
		ClockError time.Duration `env:"CLOCK_ERROR"` // largest difference of the provider's clock, in either direction
		MaxDelay   time.Duration `env:"MAX_DELAY"`   // the longest time until a request arrives at the provider
		Visibility time.Duration `env:"VISIBILITY"`  // in whole seconds
		Common
	}

	// Admin holds the settings of the admin function.
	Admin struct {
		API       string        `env:"API"` // the only API whose events are accepted: its id and stage, as in a1b2c3/v1
		Tables    ControlTables `env:"PLANS TENANTS KEYS CELLS"`
		CellTable []CellTable   `env:"STATUS_CELLS"` // for the status of the cells' configuration; if empty, no status
		Secret    string        `env:"SECRET"`       // holds the peppers of new keys; if "", callers make their keys
		Pepper    string        `env:"KEY_PEPPER"`   // id of the pepper that hashes new keys, if Secret is set
		Common
	}

	// Ops holds the settings of a cell's ops function: those of its authorizer, and the table of operations.
	Ops struct {
		*Settings
		API        string `env:"API"`              // see [Admin]
		Operations string `env:"OPERATIONS_TABLE"` // name or ARN of the control table
	}
)

// CellTable is a cell and one of its tables, by name or ARN: its config table or its counters table.
type CellTable struct{ Cell, Table string }

// Shared returns the settings that all functions have.
func (c Common) Shared() Common { return c }

// Shared returns the settings that all functions have.
func (s *Ops) Shared() Common {
	return Common{LogLevel: s.LogLevel, MetricsNamespace: s.MetricsNamespace}
}

const (
	maxGrace      = time.Hour
	minWait       = time.Second
	maxWait       = 10 * time.Minute
	maxCells      = 50 // cells that one canary can watch
	maxParallel   = 1000
	minVisibility = 10 * time.Second
	maxVisibility = 5 * time.Minute // so that most of a call of 15 minutes receives messages
	maxGuard      = time.Minute     // as long as the longest period of the limit
)

var (
	topicARN     = shape{":_./-", 20, 512}
	queueURL     = shape{":/._-", 12, 512}
	nameAlone    = shape{"_.-", 3, 255} // a table's name without an ARN
	bucketName   = shape{".-", 3, 63}
	functionName = shape{":_$-", 1, 256} // or an ARN
	limitText    = shape{"./", 3, 64}
)

// setting is what is known of a variable. Its read function stores the value, or returns what is wrong with it without
// repeating the value.
type setting struct {
	otherwise string // the value if it is not set
	required  bool
	text      string // for the table in the documentation
	read      func(to any, v string) (wrong string)
}

// settings holds the variables of all functions but the authorizer, without those of control tables.
var settings = map[string]setting{
	"METRICS_NAMESPACE": {"Sluice", false, "The namespace of the metrics in CloudWatch.",
		func(to any, v string) string { return namespace(to.(*string), v) }},
	"LOG_LEVEL": {"info", false, "`debug`, `info`, `warn` or `error`.",
		func(to any, v string) string { return level(to.(*slog.Level), v) }},
	"CELL":         {"", true, "The cell's id.", text(cellName, "1 to 64 of A-Z a-z 0-9 . _ -")},
	"CONFIG_TABLE": {"", true, "The cell's config table, by name or ARN.", text(tableName, "a table's name or ARN")},
	"TOPIC": {"", true, "ARN of the topic on which changes are published.", func(to any, v string) string {
		const want = "the ARN of a standard topic"
		if !strings.HasPrefix(v, "arn:") || strings.HasSuffix(v, ".fifo") {
			return "must be " + want
		}
		return match(to.(*string), v, topicARN, want)
	}},
	"CHANGES_QUEUE": {"", true, "URL of the cell's queue, from which the messages come.", standardQueue},
	"KEPT_QUEUE": {"", true, "URL of the SQS queue for dead letters: messages and records that cannot be processed.",
		standardQueue},
	"GRACE": {"2m", false, "How old a change must be before reconcile reports that a cell lacks it: a younger change " +
		"may be on its way.", period(0, maxGrace)},
	"CANARY_CELLS": {"", true, "The cells that are watched, separated by commas: for each, its id, `=`, and the name " +
		"or ARN of its config table, such as `eu-1=config-eu-1`.", configTables},
	"CANARY_WAIT": {"30s", false, "How long the canary waits until all cells have its change. It must be less than " +
		"the function's timeout.", period(minWait, maxWait)},
	"AUDIT_BUCKET": {"", true, "The bucket with Object Lock in which each version is kept, and whose default " +
		"retention locks it.", text(bucketName, "a bucket's name")},
	"ANCHOR_KEY": {"", true, "ARN of the key in KMS that signs anchors: ECC_NIST_P256, SIGN_VERIFY.",
		func(to any, v string) string {
			const want = "the ARN of a key in KMS"
			if !strings.HasPrefix(v, "arn:") || !strings.Contains(v, ":key/") {
				return "must be " + want
			}
			return match(to.(*string), v, topicARN, want)
		}},
	"API": {"", true, "The API in front of the function: its id and stage, as in `a1b2c3/v1`. Events of others are " +
		"refused.", func(to any, v string) string {
		id, stage, ok := strings.Cut(v, "/")
		if !ok || !apiID.fits(id) || !stageName.fits(stage) {
			return "must be an API's id and stage, as in a1b2c3/v1"
		}
		*to.(*string) = v
		return ""
	}},
	"STATUS_CELLS": {"", false, "The cells whose configuration has a status, separated by commas: `eu-1=` and the " +
		"name or ARN of its config table.", configTables},
	"SECRET": {"", false, "The secret with the peppers of keys: its name or ARN. Not set: keys are made by the caller.",
		text(secretName, "a secret's name or ARN")},
	"KEY_PEPPER": {"", false, "With SLUICE_SECRET: the id of the pepper that new keys are hashed with.",
		text(cellName, "1 to 64 of A-Z a-z 0-9 . _ -")},
	"QUEUE": {"", true, "URL of the SQS queue whose messages are handled.", text(queueURL, "the URL of a queue")},
	"TARGET": {"", true, "The function that handles a message: its name or ARN.",
		text(functionName, "a function's name or ARN")},
	"LIMIT": {"", true, "How many messages are handled in a period of at most a minute: `100/s`, `5000/m`, " +
		"`10/500ms`.", text(limitText, "a limit such as 100/s")},
	"SPREAD": {"false", false, "`true` spreads messages evenly over each period.",
		func(to any, v string) string { return boolean(to.(*bool), v) }},
	"PARALLEL": {"10", false, "How many messages are handled at once, and so how many calls of the target there are.",
		func(to any, v string) string { return integer(to.(*int), v, 1, maxParallel) }},
	"CLOCK_ERROR": {"0s", false, "By how much the provider's clock and AWS's may differ, in either direction. Twice " +
		"this and `SLUICE_MAX_DELAY` must be less than the period of the limit.", period(0, maxGuard)},
	"MAX_DELAY": {"0s", false, "How long a request may take from the call of the target until it arrives at the " +
		"provider, with the start of the target.", period(0, maxGuard)},
	"VISIBILITY": {"30s", false, "How long a received message is hidden from others, and how long the target may take.",
		func(to any, v string) string {
			wrong := period(minVisibility, maxVisibility)(to, v)
			if wrong == "" && *to.(*time.Duration)%time.Second != 0 {
				wrong = "must be in whole seconds"
			}
			return wrong
		}},
}

// text reads a text of a shape.
func text(of shape, want string) func(to any, v string) string {
	return func(to any, v string) string { return match(to.(*string), v, of, want) }
}

// period reads a time between two bounds.
func period(least, most time.Duration) func(to any, v string) string {
	return func(to any, v string) string {
		d, err := time.ParseDuration(v)
		if err != nil || d < least || d > most {
			return fmt.Sprintf("must be a time such as 30s, %s to %s", least, most)
		}
		*to.(*time.Duration) = d
		return ""
	}
}

func standardQueue(to any, v string) string {
	const want = "the URL of a standard queue"
	if !strings.HasPrefix(v, "https://") && !strings.HasPrefix(v, "http://") || strings.HasSuffix(v, ".fifo") {
		return "must be " + want
	}
	return match(to.(*string), v, queueURL, want)
}

func configTables(to any, v string) string { return cells(to.(*[]CellTable), v, "config") }

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

// controlTable returns the setting of a control table, of which the tag env says "PLANS" or "PLANS:name".
func controlTable(tag string) (name string, s setting) {
	table, alone := strings.CutSuffix(tag, ":name")
	of, what := tableName, "name or ARN"
	if alone {
		of, what = nameAlone, "name"
	}
	return table + "_TABLE", setting{
		required: true, text: "The control table of " + strings.ToLower(table) + ", " + what + ".",
		read: text(of, "a table's "+what),
	}
}

// variablesOf returns the variables of the fields of a struct with the tag env, in the order of the fields.
func variablesOf(of any) (all []variable) {
	add := func(name string, s setting, to reflect.Value) {
		pointer := to.Addr().Interface()
		all = append(all, variable{prefix + name, s.otherwise, s.required, s.text,
			func(v string) string { return s.read(pointer, v) }})
	}
	v := reflect.ValueOf(of).Elem()
	for i := range v.NumField() {
		tag, to := v.Type().Field(i).Tag.Get("env"), v.Field(i)
		switch pointer := to.Addr().Interface().(type) {
		case *Common:
			all = append(all, variablesOf(pointer)...)
		case *ControlTables:
			for _, one := range strings.Fields(tag) {
				name, s := controlTable(one)
				add(name, s, to.FieldByName(name[:1]+strings.ToLower(strings.TrimSuffix(name[1:], "_TABLE"))))
			}
		default:
			if s, ok := settings[tag]; ok {
				add(tag, s, to)
			} else if tag != "" {
				name, s := controlTable(strings.Replace(tag, "_TABLE", "", 1))
				add(name, s, to)
			}
		}
	}
	return all
}

// functions holds the settings of each function but the authorizer, and what problems call it.
var functions = map[string]struct {
	settings any
	called   string
}{
	"publisher": {Publisher{}, "publisher"}, "balancer": {Balancer{}, "balancer"}, "applier": {Applier{}, "applier"},
	"reconcile": {Reconcile{}, "reconcile"}, "canary": {Canary{}, "canary"}, "archiver": {Archiver{}, "archiver"},
	"anchor": {Anchor{}, "anchor function"}, "worker": {Worker{}, "worker"}, "admin": {Admin{}, "admin function"},
	"ops": {Ops{}, "ops function"},
}

// Read reads the settings of a function, as [Parse] does. S is one of the types of settings but [Settings] and [Ops].
func Read[S any](environ []string) (*S, error) {
	s := new(S)
	if err := read(s, environ); err != nil {
		return nil, err
	}
	return s, nil
}

// read reads the variables of the fields of a struct.
func read(settings any, environ []string) error {
	p, called := &problems{}, ""
	for _, f := range functions {
		if reflect.TypeOf(f.settings) == reflect.TypeOf(settings).Elem() {
			called = f.called
		}
	}
	p.read(called, variablesOf(settings), environ)
	if s, is := settings.(*Admin); is && len(p.found) == 0 && (s.Secret == "") != (s.Pepper == "") {
		p.wrong("SLUICE_KEY_PEPPER", "goes with SLUICE_SECRET")
	}
	return p.err()
}

// ParseOps reads a cell's ops settings, as [Parse] does.
func ParseOps(environ []string, bundle fs.FS, issuers Issuers) (*Ops, error) {
	own, rest := []string(nil), []string(nil)
	for _, e := range environ {
		switch name, _, _ := strings.Cut(e, "="); {
		case name == "SLUICE_OPERATIONS_TABLE" || name == "SLUICE_API":
			own = append(own, e)
		default:
			rest = append(rest, e)
		}
	}
	s, bad := Read[Ops](own)
	shared, err := Parse(rest, bundle, issuers)
	var all Error
	for _, err := range []error{bad, err} {
		var one *Error
		if errors.As(err, &one) {
			all.Problems = append(all.Problems, one.Problems...)
		} else if err != nil {
			return nil, err
		}
	}
	if len(all.Problems) > 0 {
		return nil, &all
	}
	if s.Settings = shared; s.ConfigTable == "" {
		return nil,
			&Error{[]Problem{{"SLUICE_CONFIG_TABLE", "is not set: an ops function reads the cell's config table"}}}
	}
	return s, nil
}

// Check returns the error with which a function would not start, which has no plans and no issuers in its zip.
func Check(function string, environ []string, issuers Issuers) (err error) {
	switch f, ok := functions[function]; {
	case function == "authorizer":
		_, err = Parse(environ, nil, issuers)
	case function == "ops":
		_, err = ParseOps(environ, nil, issuers)
	case ok:
		err = read(reflect.New(reflect.TypeOf(f.settings)).Interface(), environ)
	default:
		err = fmt.Errorf("there is no function %s", function)
	}
	return err
}

// variablesOfFunction returns the variables of a function, or nil if there is no such function.
func variablesOfFunction(function string) []variable {
	if function == "authorizer" {
		return new(parser).variables()
	}
	if f, ok := functions[function]; ok {
		return variablesOf(reflect.New(reflect.TypeOf(f.settings)).Interface())
	}
	return nil
}

// Names returns the names of the variables that a function reads.
func Names(function string) (names []string) {
	all := variablesOfFunction(function)
	if function == "ops" {
		all = append(all, variablesOfFunction("authorizer")...)
	}
	for _, v := range all {
		names = append(names, v.name)
	}
	return names
}

// FunctionTable returns the variables of a function as a Markdown table for the documentation, or "" if there is no
// such function. The table of ops has only the variables that the authorizer does not have.
func FunctionTable(function string) string {
	all := variablesOfFunction(function)
	if all == nil {
		return ""
	}
	return markdown(all)
}
