package main

import (
	"os"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/bench"
)

const page = "../../docs/benchmarks.md"

// Guarantees that the table of the page is the generator's: a row for each figure and no other, in their order, with
// the goals of the code, "missed" where a value misses its goal, and what each figure is.
func TestPageHasTheTable(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	figures := bench.Figures()
	made, err := newTable(text, strings.NewReader(""), figures)
	if err != nil {
		t.Fatal(err)
	}
	if string(made) != string(text) {
		t.Errorf("the table of %s is not what make figures-table FROM=/dev/null makes of it: run that, and read the "+
			"diff", page)
	}
	_, table, _ := strings.Cut(string(text), tableBegins)
	table, _, _ = strings.Cut(table, tableEnds)
	rows, err := readRows(table)
	if err != nil {
		t.Fatal(err)
	}
	measured := 0
	for i := range figures {
		r := rows[figures[i].Name]
		if r.what == "" || r.what == unmeasured {
			t.Errorf("the table does not say what %s is", figures[i].Name)
		}
		if (r.measured == unmeasured) != (r.on == unmeasured) {
			t.Errorf("%s is %s, measured on %s: want both or neither", figures[i].Name, r.measured, r.on)
		}
		if r.measured != unmeasured {
			measured++
		}
	}
	if measured < 35 {
		t.Errorf("only %d figures of the table are measured", measured)
	}
}

func TestNewTable(t *testing.T) {
	met, floor, none := figure("met", 0, 1, false, nil), figure("floor", 0, 300, true, nil), figure("none", 0, 0,
		false, nil)
	goalless := figure("goalless", 0, 0, false, nil)
	none.ZeroGoal, none.Digits, floor.Digits = true, 0, 0
	figures := []bench.Figure{met, floor, none, goalless}
	const (
		before   = "# Page\n\n" + tableBegins
		after    = tableEnds + "\n\nMore.\n"
		rowMet   = "| `met` | 0.5 × | ≤ 1 | 2026-01-02, a machine | What it is. | a note |\n"
		rowFloor = "| `floor` | 1,299 × | ≥ 300 | 2026-01-02, a machine | At least. | – |\n"
		day      = "# 2026-03-04, 2 × CPU, linux/amd64, go1.26\n"
	)
	row := func(name, goal string) string { return "| `" + name + "` | – | " + goal + " | – | – | – |\n" }
	rest := row("none", "≤ 0") + row("goalless", "–")
	on := " | 2026-03-04, 2 × CPU, linux/amd64, go1.26 | "
	tests := []struct {
		name, table, output string
		want                string // the rows, or a part of the error
		fails               bool
	}{
		{"nothing measured", rowMet + rowFloor, "", rowMet + rowFloor + rest, false},
		{"rows of no figure go, rows in another order are sorted", rowFloor + row("gone", "–") + rowMet, "",
			rowMet + rowFloor + rest, false},
		{"one run", rowMet + rowFloor, day + "figure met 0.75 x <=1.0\n# met: fresh\n",
			"| `met` | 0.75 × | ≤ 1" + on + "What it is. | fresh |\n" + rowFloor + rest, false},
		{"two runs", rowMet + rowFloor, day + "figure met 0.75 x <=1.0\n" + day +
			"figure met 1.25 x <=1.0\n# met: the goal is missed\n",
			"| `met` | 0.75–1.25 × | ≤ 1 **missed**" + on + "What it is. | – |\n" + rowFloor + rest, false},
		{"below a floor", rowMet + rowFloor, day + "figure floor 299 x >=300.0\n",
			rowMet + "| `floor` | 299 × | ≥ 300 **missed**" + on + "At least. | – |\n" + rest, false},
		{"no goal", "", day + "# goalless 7.00 x\n", row("met", "≤ 1") + row("floor", "≥ 300") + row("none", "≤ 0") +
			"| `goalless` | 7.00 × | –" + on + "– | – |\n", false},
		{"a short run", "", day + "# a short run: the numbers are rough\nfigure met 0.75 x <=1.0\n", "short run", true},
		{"no day", "", "figure met 0.75 x <=1.0\n", "no line with a day", true},
		{"a row by hand", "| met | 1 |\n", "", "2 columns", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := newTable([]byte(before+tableHead+tt.table+after), strings.NewReader(tt.output), figures)
			switch {
			case tt.fails:
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("newTable = %v, want an error with %q", err, tt.want)
				}
			case err != nil:
				t.Error(err)
			case string(got) != before+tableHead+tt.want+after:
				t.Errorf("newTable =\n%s\nwant the rows\n%s", got, tt.want)
			}
		})
	}
	if _, err := newTable([]byte("# Page\n"), strings.NewReader(""), figures); err == nil {
		t.Error("a page without a table gives no error")
	}
}

// The line that names day and machine must be one that the table reads.
func TestEnvironmentIsRead(t *testing.T) {
	var out, errs strings.Builder
	met := figure("met", 0.5, 1, false, nil)
	if status := run(nil, []bench.Figure{met}, strings.NewReader(""), &out, &errs); status != 0 {
		t.Fatalf("%d: %s", status, errs.String())
	}
	got, err := newTable([]byte(tableBegins+tableEnds), strings.NewReader(out.String()), []bench.Figure{met})
	if err != nil || !strings.Contains(string(got), "| `met` | 0.50 × | ≤ 1 | 20") {
		t.Errorf("the table of %q is\n%s%v", out.String(), got, err)
	}
}
