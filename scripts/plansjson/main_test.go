package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/plan"
)

// Guarantees that plansjson writes canonical JSON: a plans file, its JSON and the JSON of that JSON are the same text,
// and the authorizer reads the same plans and tenants from all of them.
func TestCanonicalJSON(t *testing.T) {
	now := time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)
	files, err := filepath.Glob("../../examples/plans/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("examples/plans has no plans files: %v", err)
	}
	for _, file := range files {
		var first, second bytes.Buffer
		if err := run(file, nil, &first, now); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if err := run("-", bytes.NewReader(first.Bytes()), &second, now); err != nil {
			t.Errorf("%s: the JSON cannot be read again: %v", file, err)
			continue
		}
		if first.String() != second.String() {
			t.Errorf("%s: the JSON is not canonical:\n%s\nand written again:\n%s", file, &first, &second)
		}
		config, err := plan.Parse(plan.Source{Name: "plans.json", Data: first.Bytes()})
		if err != nil || len(config.Plans()) == 0 {
			t.Errorf("%s: the authorizer does not read the JSON: %v", file, err)
		}
	}
}

// Guarantees that a plans file with problems gives an error that names each problem's place, and no output.
func TestProblems(t *testing.T) {
	var out bytes.Buffer
	err := run("-", strings.NewReader("plans:\n  - id: free\n    limit: []\n"), &out, time.Now())
	if err == nil || !strings.Contains(err.Error(), "<stdin>:3:5: ") || out.Len() > 0 {
		t.Errorf("got the error %v and the output %q; want an error at <stdin>:3:5 and no output", err, &out)
	}
	if err := run("no-such-file.yaml", nil, &out, time.Now()); err == nil {
		t.Error("a file that does not exist gives no error")
	}
}
