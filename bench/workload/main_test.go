package main

import (
	"strings"
	"testing"
)

// Programs and people believe the exit code: a command line that measures nothing must not look like a table without
// faults.
func TestRun(t *testing.T) {
	tests := []struct {
		args   []string
		status int
		out    []string // parts
		errs   string   // part
	}{
		{[]string{"-sim", "-windows", "1", "-algorithms", "fixed_window", "-only", "^0.75"}, 0,
			[]string{"seed 1", "\nfixed_window\n", "\n0.75 of demand "}, ""},
		{[]string{"-sim", "-windows", "1", "-algorithms", "sliding_window,token_bucket", "-only", "^never"}, 0,
			[]string{"\nsliding_window\n", "\ntoken_bucket\n", "\nnever binds "}, ""},
		{[]string{"-sim", "-only", "nothing is called so"}, 2, nil, "no run matches"},
		{[]string{"-only", "nothing is called so"}, 2, nil, "no run matches"},
		{[]string{"-windows", "0"}, 2, nil, "must be at least 1"},
		{[]string{"-warm", "-1"}, 2, nil, "must not be negative"},
		{[]string{"-algorithms", "leaky_bucket"}, 2, nil, `no algorithm "leaky_bucket"`},
		{[]string{"-only", "("}, 2, nil, "error parsing regexp"},
		{[]string{"sim"}, 2, nil, `"sim" is not a flag`},
		{[]string{"-x"}, 2, nil, "-x"},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			var out, errs strings.Builder
			if got := run(tt.args, &out, &errs); got != tt.status {
				t.Errorf("status %d, want %d; errors: %s", got, tt.status, errs.String())
			}
			for _, part := range tt.out {
				if !strings.Contains(out.String(), part) {
					t.Errorf("printed\n%swant %q", out.String(), part)
				}
			}
			if !strings.Contains(errs.String(), tt.errs) {
				t.Errorf("errors %q, want %q", errs.String(), tt.errs)
			}
		})
	}
}
