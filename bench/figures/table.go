package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/bench"
)

// The lines of a page between which the table of figures stands.
const (
	tableBegins = "<!-- The table is made by `make figures-table FROM=FILE`. Edit by hand only the column \"what it " +
		"is\". -->\n"
	tableEnds = "<!-- end of the table -->"
	tableHead = "| figure | measured | goal | measured on | what it is | notes of the measurement " +
		"|\n|---|---|---|---|---|---|\n"
)

const unmeasured = "–" // also stands for a goal that a figure does not have

// row is a figure's line in the table. A measurement replaces all of it but what.
type row struct {
	measured string // a value, or the lowest and the highest of several runs; then the unit
	on       string // day and machine
	what     string // what the figure is, written by hand
	notes    string
}

// header is the first line of a measurement: its day and machine.
var header = regexp.MustCompile(`^# (\d{4}-\d\d-\d\d, .+)$`)

// environment is the day and the machine of a measurement that begins now.
func environment(now time.Time, processors int, platform, version string) string {
	return fmt.Sprintf("%s, %d × %s, %s, %s", now.UTC().Format(time.DateOnly), processors, processor(), platform,
		version)
}

// processor is the name of the machine's processor, or "processor" where the system does not tell.
func processor() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "processor"
	}
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "processor"
}

// writeTable puts the figures of measured, which is the output of one run of this program or of several, into the table
// of page. Rows of other figures stay as they are.
func writeTable(page string, measured io.Reader, figures []bench.Figure) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	text, err = newTable(text, measured, figures)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	// the caller names the page, which is there and keeps its mode
	return os.WriteFile(page, text, 0o600) //nolint:gosec // the page is given by the caller
}

func newTable(page []byte, measured io.Reader, figures []bench.Figure) ([]byte, error) {
	before, rest, found := bytes.Cut(page, []byte(tableBegins))
	table, after, ends := bytes.Cut(rest, []byte(tableEnds))
	if !found || !ends {
		return nil, fmt.Errorf("no table of figures: want the lines\n%s%s", tableBegins, tableEnds)
	}
	rows, err := readRows(string(table))
	if err != nil {
		return nil, err
	}
	if err := readMeasured(measured, figures, rows); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.Write(before)
	out.WriteString(tableBegins + tableHead)
	for i := range figures {
		out.WriteString(line(&figures[i], rows[figures[i].Name]))
	}
	out.WriteString(tableEnds)
	out.Write(after)
	return out.Bytes(), nil
}

// readRows reads the rows of a table that this program wrote, by name.
func readRows(table string) (map[string]row, error) {
	rows := make(map[string]row)
	for text := range strings.Lines(strings.TrimPrefix(table, tableHead)) {
		cells := strings.Split(strings.TrimSuffix(strings.TrimSpace(text), " |"), " | ")
		if len(cells) != 6 {
			return nil, fmt.Errorf("a row has %d columns, want 6: %s", len(cells), text)
		}
		name := strings.Trim(strings.TrimPrefix(cells[0], "| "), "`")
		rows[name] = row{measured: cells[1], on: cells[3], what: cells[4], notes: cells[5]}
	}
	return rows, nil
}

// readMeasured replaces the rows of the figures that the output has.
func readMeasured(output io.Reader, figures []bench.Figure, rows map[string]row) error {
	values, notes := make(map[string][]float64), make(map[string][]string)
	on := ""
	for scan := bufio.NewScanner(output); scan.Scan(); {
		text := scan.Text()
		if m := header.FindStringSubmatch(text); m != nil {
			on = m[1]
			continue
		}
		if strings.HasPrefix(text, "# a short run") {
			return fmt.Errorf("this was a short run, whose numbers are rough: %s", text)
		}
		name, rest, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(text, "figure "), "# "), " ")
		if note, ok := strings.CutSuffix(name, ":"); ok && rest != goalMissed {
			notes[note] = append(notes[note], strings.ReplaceAll(rest, "|", "/"))
			continue
		}
		number, _, _ := strings.Cut(rest, " ")
		v, err := strconv.ParseFloat(number, 64)
		if err == nil && slices.ContainsFunc(figures, func(f bench.Figure) bool { return f.Name == name }) {
			values[name] = append(values[name], v)
		}
	}
	for i := range figures {
		f := &figures[i]
		v := values[f.Name]
		if len(v) == 0 {
			continue
		}
		if on == "" {
			return fmt.Errorf("the output has no line with a day and a machine before %s", f.Name)
		}
		r := rows[f.Name]
		r.measured, r.on, r.notes = measuredCell(f, v), on, strings.Join(slices.Compact(notes[f.Name]), "; ")
		if r.notes == "" {
			r.notes = unmeasured
		}
		rows[f.Name] = r
	}
	return nil
}

// measuredCell is the value, or the lowest and the highest of several, and the unit.
func measuredCell(f *bench.Figure, values []float64) string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', f.Digits, 64) }
	text := number(slices.Min(values))
	if highest := number(slices.Max(values)); highest != text {
		text += "–" + highest
	}
	if f.Unit == "x" {
		return text + " ×"
	}
	return text + " " + f.Unit
}

func line(f *bench.Figure, r row) string {
	for _, cell := range []*string{&r.measured, &r.on, &r.what, &r.notes} {
		if *cell == "" {
			*cell = unmeasured
		}
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s | %s | %s |\n", f.Name, r.measured, goalCell(f, r.measured), r.on, r.what,
		r.notes)
}

var numbers = regexp.MustCompile(`\d[\d,]*(?:\.\d+)?`)

// goalCell is the goal, and whether one of the measured values misses it.
func goalCell(f *bench.Figure, measured string) string {
	if f.Goal == 0 && !f.ZeroGoal {
		return unmeasured
	}
	sign, missed := "≤ ", false
	if f.MinimumGoal {
		sign = "≥ "
	}
	value, _, _ := strings.Cut(measured, " ")
	for _, text := range numbers.FindAllString(value, -1) {
		v, err := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
		missed = missed || err == nil && !f.Met(v)
	}
	goal := sign + strconv.FormatFloat(f.Goal, 'f', -1, 64)
	if missed {
		goal += " **missed**"
	}
	return goal
}
