package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/bench"
)

func figure(name string, value, goal float64, floor bool, err error) bench.Figure {
	return bench.Figure{Name: name, Unit: "x", Goal: goal, MinimumGoal: floor, Digits: 2,
		Measure: func(bool) (bench.Result, error) { return bench.Result{Value: value, Notes: []string{"a note"}}, err }}
}

// Programs read these lines, and CI believes the exit code: a figure that is missed or could not be measured must show.
func TestRun(t *testing.T) {
	met := figure("met", 0.825, 1, false, nil)
	missed := figure("missed", 1.5, 1, false, nil)
	floor := figure("floor", 299, 300, true, nil)
	goalless := figure("goalless", 1.5, 0, false, nil)
	none, some := figure("none", 0, 0, false, nil), figure("some", 1, 0, false, nil)
	none.ZeroGoal, some.ZeroGoal, none.Digits, some.Digits = true, true, 0, 0
	broken := figure("broken", 0.1, 1, false, errors.New("only one key was hit"))
	tests := []struct {
		name    string
		args    []string
		figures []bench.Figure
		status  int
		out     []string // whole lines
		not     []string // parts that must not be in out
		errs    string
	}{
		{"met", nil, []bench.Figure{met}, 0, []string{"figure met 0.82 x <=1.0", "# met: a note"}, []string{"missed"},
			""},
		{"missed", nil, []bench.Figure{missed}, 0, []string{"figure missed 1.50 x <=1.0",
			"# missed: the goal is missed"}, nil, ""},
		{"missed, strictly", []string{"-strict"}, []bench.Figure{missed, met}, 1,
			[]string{"figure missed 1.50 x <=1.0", "figure met 0.82 x <=1.0"}, nil, ""},
		{"below a floor", []string{"-strict"}, []bench.Figure{floor}, 1, []string{"figure floor 299.00 x >=300.0"},
			nil, ""},
		{"no goal", []string{"-strict"}, []bench.Figure{goalless}, 0, []string{"# goalless 1.50 x"},
			[]string{"figure "}, ""},
		{"a goal of nothing, met", []string{"-strict"}, []bench.Figure{none}, 0, []string{"figure none 0 x <=0"},
			[]string{"missed"}, ""},
		{"a goal of nothing, missed", []string{"-strict"}, []bench.Figure{some}, 1,
			[]string{"figure some 1 x <=0", "# some: the goal is missed"}, nil, ""},
		{"broken", nil, []bench.Figure{broken, met}, 1, []string{"figure met 0.82 x <=1.0"}, []string{"figure broken"},
			"broken: only one key was hit"},
		{"only", []string{"-only", "met,floor"}, []bench.Figure{broken, met, floor}, 0,
			[]string{"figure met 0.82 x <=1.0"}, []string{"broken"}, ""},
		{"only an unknown one", []string{"-only", "mett"}, []bench.Figure{met, missed}, 2, nil, []string{"figure"},
			`"mett"; there are met, missed`},
		{"an argument", []string{"met"}, []bench.Figure{met}, 2, nil, []string{"figure"}, `"met" is no flag`},
		{"an unknown flag", []string{"-x"}, []bench.Figure{met}, 2, nil, []string{"figure"}, "-x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out, errs strings.Builder
			if status := run(tt.args, tt.figures, strings.NewReader(""), &out, &errs); status != tt.status {
				t.Errorf("run(%q) = %d, want %d; errors: %s", tt.args, status, tt.status, errs.String())
			}
			for _, line := range tt.out {
				if !strings.Contains("\n"+out.String(), "\n"+line+"\n") {
					t.Errorf("run(%q) printed\n%swant the line %q", tt.args, out.String(), line)
				}
			}
			for _, part := range tt.not {
				if strings.Contains(out.String(), part) {
					t.Errorf("run(%q) printed\n%swant no %q", tt.args, out.String(), part)
				}
			}
			if !strings.Contains(errs.String(), tt.errs) {
				t.Errorf("run(%q) said %q, want %q", tt.args, errs.String(), tt.errs)
			}
		})
	}
}
