package environ_test

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/aws/environ"
)

const (
	topic = "arn:aws:sns:eu-west-1:123456789012:changes"
	queue = "https://sqs.eu-west-1.amazonaws.com/123456789012/kept"
)

var common = environ.Common{LogLevel: slog.LevelInfo, MetricsNamespace: "Sluice"}

// functions are how each function's settings are read, from the smallest environment that will do.
var functions = map[string]struct {
	parse func([]string) (any, error)
	least []string
	want  any
}{
	"publisher": {
		func(e []string) (any, error) { return environ.Read[environ.Publisher](e) },
		[]string{"SLUICE_PLANS_TABLE=plans", "SLUICE_TENANTS_TABLE=tenants", "SLUICE_KEYS_TABLE=keys",
			"SLUICE_TOPIC=" + topic, "SLUICE_KEPT_QUEUE=" + queue},
		&environ.Publisher{Common: common, Tables: environ.ControlTables{Plans: "plans", Tenants: "tenants",
			Keys: "keys"}, Topic: topic, KeptQueue: queue},
	},
	"balancer": {
		func(e []string) (any, error) { return environ.Read[environ.Balancer](e) },
		[]string{"SLUICE_CELLS_TABLE=cells", "SLUICE_PLANS_TABLE=plans", "SLUICE_TOPIC=" + topic,
			"SLUICE_KEPT_QUEUE=" + queue},
		&environ.Balancer{Common: common, Tables: environ.ControlTables{Plans: "plans", Cells: "cells"}, Topic: topic,
			KeptQueue: queue},
	},
	"applier": {
		func(e []string) (any, error) { return environ.Read[environ.Applier](e) },
		[]string{
			"SLUICE_CELL=eu-1", "SLUICE_CONFIG_TABLE=config", "SLUICE_KEPT_QUEUE=" + queue,
			"SLUICE_CHANGES_QUEUE=" + queue + "-changes",
			"SLUICE_PLANS_TABLE=plans", "SLUICE_TENANTS_TABLE=tenants", "SLUICE_KEYS_TABLE=keys",
			"SLUICE_CELLS_TABLE=cells",
		},
		&environ.Applier{Common: common, Cell: "eu-1", ConfigTable: "config", KeptQueue: queue,
			Queue:  queue + "-changes",
			Tables: environ.ControlTables{Plans: "plans", Tenants: "tenants", Keys: "keys", Cells: "cells"}},
	},
	"reconcile": {
		func(e []string) (any, error) { return environ.Read[environ.Reconcile](e) },
		[]string{"SLUICE_CELL=eu-1", "SLUICE_CONFIG_TABLE=config", "SLUICE_PLANS_TABLE=plans",
			"SLUICE_TENANTS_TABLE=tenants", "SLUICE_KEYS_TABLE=keys", "SLUICE_CELLS_TABLE=cells"},
		&environ.Reconcile{Common: common, Cell: "eu-1", ConfigTable: "config",
			Tables: environ.ControlTables{Plans: "plans", Tenants: "tenants", Keys: "keys", Cells: "cells"},
			Grace:  2 * time.Minute},
	},
	"canary": {
		func(e []string) (any, error) { return environ.Read[environ.Canary](e) },
		[]string{"SLUICE_PLANS_TABLE=plans",
			"SLUICE_CANARY_CELLS=eu-1=config, us-1=arn:aws:dynamodb:us-east-1:123456789012:table/config"},
		&environ.Canary{Common: common, Plans: "plans", Wait: 30 * time.Second,
			Cells: []environ.CellTable{{Cell: "eu-1", Table: "config"},
				{Cell: "us-1", Table: "arn:aws:dynamodb:us-east-1:123456789012:table/config"}}},
	},
	"worker": {
		func(e []string) (any, error) { return environ.Read[environ.Worker](e) },
		[]string{"SLUICE_QUEUE=" + queue, "SLUICE_TARGET=sender", "SLUICE_LIMIT=100/s"},
		&environ.Worker{Common: common, Queue: queue, Target: "sender", Limit: "100/s", Parallel: 10,
			Visibility: 30 * time.Second},
	},
	"archiver": {
		func(e []string) (any, error) { return environ.Read[environ.Archiver](e) },
		[]string{"SLUICE_PLANS_TABLE=plans", "SLUICE_TENANTS_TABLE=tenants", "SLUICE_KEYS_TABLE=keys",
			"SLUICE_CELLS_TABLE=cells", "SLUICE_OPERATIONS_TABLE=operations", "SLUICE_AUDIT_BUCKET=audit.example-1"},
		&environ.Archiver{Common: common, Operations: "operations", Bucket: "audit.example-1",
			Tables: environ.ControlTables{Plans: "plans", Tenants: "tenants", Keys: "keys", Cells: "cells"}},
	},
	"anchor": {
		func(e []string) (any, error) { return environ.Read[environ.Anchor](e) },
		[]string{"SLUICE_PLANS_TABLE=plans", "SLUICE_TENANTS_TABLE=tenants", "SLUICE_KEYS_TABLE=keys",
			"SLUICE_CELLS_TABLE=cells",
			"SLUICE_OPERATIONS_TABLE=operations", "SLUICE_AUDIT_BUCKET=audit",
			"SLUICE_ANCHOR_KEY=arn:aws:kms:eu-west-1:123456789012:key/a-1"},
		&environ.Anchor{
			Common: common, Operations: "operations", Key: "arn:aws:kms:eu-west-1:123456789012:key/a-1",
			Tables: environ.ControlTables{Plans: "plans", Tenants: "tenants", Keys: "keys", Cells: "cells"},
			Bucket: "audit",
		},
	},
}

// Guarantees that each function's settings are read, with the defaults that the documentation tells, and that each one
// that is required is missed by name.
func TestFunctionSettings(t *testing.T) {
	for name, f := range functions {
		t.Run(name, func(t *testing.T) {
			got, err := f.parse(append([]string{"PATH=/usr/bin"}, f.least...))
			if err != nil || !reflect.DeepEqual(got, f.want) {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, f.want)
			}
			for i, given := range f.least {
				variable, _, _ := strings.Cut(given, "=")
				without := append(append([]string{}, f.least[:i]...), f.least[i+1:]...)
				var wrong *environ.Error
				if _, err := f.parse(without); !errors.As(err, &wrong) || len(wrong.Problems) != 1 ||
					wrong.Problems[0] != (environ.Problem{Variable: variable, Text: "is missing"}) {
					t.Errorf("without %s: %v", variable, err)
				}
			}
			if _, err := f.parse(append([]string{"SLUICE_SECRET=" + marker}, f.least...)); err == nil ||
				!strings.Contains(err.Error(), "SLUICE_SECRET is not a variable of the "+name) {
				t.Errorf("another function's variable: %v", err)
			}
			own := []string{"SLUICE_LOG_LEVEL=debug", "SLUICE_METRICS_NAMESPACE=My/Own"}
			got, err = f.parse(append(own, f.least...))
			set := environ.Common{LogLevel: slog.LevelDebug, MetricsNamespace: "My/Own"}
			if s, ok := got.(interface{ Shared() environ.Common }); err != nil || !ok || s.Shared() != set {
				t.Errorf("got %+v, %v; want %+v", got, err, set)
			}
		})
	}
}

// Guarantees that a wrong setting of a function is named, says what it must be, and is not repeated.
func TestFunctionProblems(t *testing.T) {
	for _, tt := range []struct{ function, change, want string }{
		{"publisher", "SLUICE_PLANS_TABLE=arn:aws:dynamodb:eu-west-1:1:table/" + marker,
			"SLUICE_PLANS_TABLE must be a table's name"},
		{"archiver", "SLUICE_PLANS_TABLE=arn:" + marker, "SLUICE_PLANS_TABLE must be a table's name"},
		{"archiver", "SLUICE_AUDIT_BUCKET=s3://" + marker, "SLUICE_AUDIT_BUCKET must be a bucket's name"},
		{"publisher", "SLUICE_TOPIC=" + marker, "SLUICE_TOPIC must be the ARN"},
		{"publisher", "SLUICE_TOPIC=" + topic + marker + ".fifo", "SLUICE_TOPIC must be the ARN of a standard topic"},
		{"publisher", "SLUICE_TOPIC=arn:" + marker, "SLUICE_TOPIC must be"},
		{"publisher", "SLUICE_KEPT_QUEUE=" + marker, "SLUICE_KEPT_QUEUE must be the URL"},
		{"applier", "SLUICE_KEPT_QUEUE=" + queue + marker + ".fifo",
			"SLUICE_KEPT_QUEUE must be the URL of a standard queue"},
		{"applier", "SLUICE_CELL=" + marker + "!", "SLUICE_CELL must be 1 to 64"},
		{"applier", "SLUICE_CONFIG_TABLE=" + marker + "?", "SLUICE_CONFIG_TABLE must be"},
		{"applier", "SLUICE_LOG_LEVEL=" + marker, "SLUICE_LOG_LEVEL must be"},
		{"applier", "SLUICE_METRICS_NAMESPACE=AWS/" + marker, "SLUICE_METRICS_NAMESPACE must not"},
		{"reconcile", "SLUICE_GRACE=-1s", "SLUICE_GRACE must be a time such as 30s, 0s to 1h0m0s"},
		{"reconcile", "SLUICE_GRACE=" + marker, "SLUICE_GRACE must be"},
		{"anchor", "SLUICE_ANCHOR_KEY=" + marker, "SLUICE_ANCHOR_KEY must be the ARN of a key in KMS"},
		{"canary", "SLUICE_CANARY_WAIT=999ms", "SLUICE_CANARY_WAIT must be a time such as 30s, 1s to 10m0s"},
		{"canary", "SLUICE_CANARY_CELLS=" + marker, "SLUICE_CANARY_CELLS must be 1 to 50 cells"},
		{"canary", "SLUICE_CANARY_CELLS=a=config,a=config", "SLUICE_CANARY_CELLS must be"},
		{"canary", "SLUICE_CANARY_CELLS=a=config,", "SLUICE_CANARY_CELLS must be"},
		{"canary", "SLUICE_CANARY_CELLS=" + strings.Repeat("a=config,", 60), "SLUICE_CANARY_CELLS must be"},
	} {
		f := functions[tt.function]
		_, err := f.parse(append(append([]string{}, f.least...), tt.change)) // the last one of a name counts
		var wrong *environ.Error
		if !errors.As(err, &wrong) || len(wrong.Problems) != 1 || !strings.Contains(fmt.Sprint(err), tt.want) ||
			strings.Contains(fmt.Sprint(err), marker) {
			t.Errorf("%s with %s: %v; want %q", tt.function, tt.change, err, tt.want)
		}
	}
}

// Guarantees that the documentation has each function's variables as they are.
func TestFunctionsDocumentation(t *testing.T) {
	const file = "../../../docs/functions.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(slices.Collect(maps.Keys(functions)), "admin", "ops") {
		if table := environ.FunctionTable(name); table == "" || !strings.Contains(string(text), "\n\n"+table) {
			t.Errorf("%s does not have this table of the %s:\n\n%s", file, name, table)
		}
	}
	if environ.FunctionTable("nobody") != "" {
		t.Error("a function that is none has variables")
	}
}
