package grants

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// SettingsTable returns memory, timeout, concurrency and what calls the function, as a Markdown table for the
// documentation.
func (f *Function) SettingsTable() string {
	reserved := strconv.Itoa(f.Reserved)
	if f.Reserved == 0 {
		reserved = "`SLUICE_MAX_INSTANCES`"
	}
	return "| memory | timeout | reserved concurrency | called by |\n|---|---|---|---|\n" +
		fmt.Sprintf("| %d MB | %s | %s | %s |\n", f.MemoryMB, span(f.Timeout), reserved,
			strings.Join(f.callers(), "; "))
}

func (f *Function) callers() (out []string) {
	if f.API && f.Name == "authorizer" {
		out = append(out, "API Gateway, as an authorizer")
	} else if f.API {
		out = append(out, "API Gateway, REST, `AWS_IAM`, a path for each operation")
	}
	if s := f.Streams; s != nil {
		names := make([]string, len(s.Of))
		for i, t := range s.Of {
			names[i] = string(t)
		}
		out = append(out, fmt.Sprintf("streams of %s: batch %d, window %s, %d retries, %s of age",
			strings.Join(names, ", "), s.Batch, span(s.Window), s.Retries, span(s.MaxAge)))
	}
	if q := f.Queue; q != nil {
		out = append(out,
			fmt.Sprintf("the cell's queue: batch %d, window %s, maximum concurrency %d; visibility %s, retention %s, "+
				"%d receives",
				q.Batch, span(q.Window), q.MaxConcurrent, span(q.Visibility), span(q.Retention), q.MaxReceives))
	}
	if f.Schedule > 0 {
		out = append(out, "a schedule: every "+span(f.Schedule))
	}
	return out
}

// span returns a duration as people write it.
func span(d time.Duration) string {
	switch {
	case d >= 48*time.Hour && d%(24*time.Hour) == 0:
		return strconv.Itoa(int(d/(24*time.Hour))) + " days"
	case d >= time.Hour && d%time.Hour == 0:
		return strconv.Itoa(int(d/time.Hour)) + " h"
	case d >= 2*time.Minute && d%time.Minute == 0:
		return strconv.Itoa(int(d/time.Minute)) + " min"
	default:
		return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + " s"
	}
}

// RoleTable returns what the function's role may do, as a Markdown table.
func (f *Function) RoleTable() string {
	var b strings.Builder
	b.WriteString("| on | its role may | |\n|---|---|---|\n")
	for i := range f.Grants {
		g := &f.Grants[i]
		var notes []string
		if len(g.Keys) > 0 {
			notes = append(notes, "only the keys "+quoted(g.Keys)+" (`dynamodb:LeadingKeys`)")
		}
		if name, value, bound := strings.Cut(g.With, "="); bound {
			notes = append(notes, fmt.Sprintf("where `%s` is `%s`", name, value))
		} else if name != "" {
			notes = append(notes, fmt.Sprintf("where `%s` is set", name))
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", g.On, quoted(g.Actions), strings.Join(notes, "; "))
	}
	return b.String()
}

func quoted(all []string) string { return "`" + strings.Join(all, "`, `") + "`" }

// AlarmTable returns the alarms on the function's own metrics as a Markdown table, or "" if there are none.
func (f *Function) AlarmTable() string {
	if len(f.Alarms) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("| alarm | what has happened |\n|---|---|\n")
	for _, a := range f.Alarms {
		unit := ""
		if strings.HasSuffix(a.Metric, "_seconds") {
			unit = " s"
		}
		var when []string
		if a.Stat != "" {
			when = append(when, fmt.Sprintf("(%s) above %s%s", a.Stat, strconv.FormatFloat(a.Above, 'f', -1, 64), unit))
		}
		if a.Silence {
			when = append(when, "no data for "+span(SilentAfter(f.Schedule)))
		}
		fmt.Fprintf(&b, "| `%s` %s | %s |\n", a.Metric, strings.Join(when, ", or "), a.Means)
	}
	return b.String()
}
