package main

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// duration is the value of a flag: days, and what time.ParseDuration reads, such as 7d, 1d12h, 90m or 500ms.
type duration time.Duration

const maxDays = 36500 // a hundred years; time.Duration ends at 292

// Set implements [pflag.Value].
func (d *duration) Set(text string) error {
	wrong := errors.New("it is not a duration such as 90m, 24h or 7d")
	days, rest, some := strings.Cut(text, "d")
	var n int
	if some {
		var err error
		if n, err = strconv.Atoi(days); err != nil || n < 0 || n > maxDays || days[0] == '+' {
			return wrong
		}
		text = rest
	}
	var more time.Duration
	if text != "" || !some {
		var err error
		if more, err = time.ParseDuration(text); err != nil || some && (more < 0 || strings.HasPrefix(text, "+")) {
			return wrong
		}
	}
	*d = duration(time.Duration(n)*24*time.Hour + more)
	return nil
}

// Type implements [pflag.Value]. The help text shows it.
func (d *duration) Type() string { return "duration" }

// String implements [pflag.Value].
func (d *duration) String() string {
	if *d == 0 {
		return "0" // the help text does not show it as a default
	}
	return limit.DurationText(time.Duration(*d))
}

// durationFlag adds a flag for a duration, which is set to standard without the flag.
func durationFlag(f *pflag.FlagSet, to *time.Duration, name string, standard time.Duration, usage string) {
	*to = standard
	f.Var((*duration)(to), name, usage)
}

// expectFlag adds a flag for the version that an item must be at.
func expectFlag(f *pflag.FlagSet, to **int64) {
	f.Func("expect", "`VERSION` that it must be at, or else nothing is written (default: any)",
		func(text string) error {
			n, err := strconv.ParseInt(text, 10, 64)
			if *to = &n; err != nil {
				err = errors.New("it is not the number of a version")
			}
			return err
		})
}

// timeFlag adds a flag for a time of RFC 3339.
func timeFlag(f *pflag.FlagSet, to *time.Time, name, usage string) {
	f.Func(name, usage, func(text string) (err error) {
		if *to, err = time.Parse(time.RFC3339, text); err != nil {
			err = errors.New("it is not a time such as 2026-12-24T00:00:00Z")
		}
		return err
	})
}

// given returns a time that a flag has set, or nil.
func given(t *time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return t
}

// timeOrNow returns a time that a flag has set, or the present.
func timeOrNow(t time.Time) time.Time {
	if t.IsZero() {
		return time.Now()
	}
	return t
}
