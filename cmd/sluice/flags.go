package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

// value is the value of a flag that read makes of its text.
type value[T any] struct {
	to   *T
	kind string // for the help text
	read func(text string) (T, error)
	show func(T) string // "" or "0": the help text shows no default
}

// Set implements [pflag.Value].
func (v *value[T]) Set(text string) error {
	got, err := v.read(text)
	if err == nil {
		*v.to = got
	}
	return err
}

// Type implements [pflag.Value].
func (v *value[T]) Type() string { return v.kind }

// String implements [pflag.Value].
func (v *value[T]) String() string { return v.show(*v.to) }

const maxDays = 36500 // a hundred years; time.Duration ends at 292

// readDuration reads days, and what time.ParseDuration reads, such as 7d, 1d12h, 90m or 500ms.
func readDuration(text string) (time.Duration, error) {
	wrong := errors.New("it is not a duration such as 90m, 24h or 7d")
	days, rest, some := strings.Cut(text, "d")
	var n int
	if some {
		var err error
		if n, err = strconv.Atoi(days); err != nil || n < 0 || n > maxDays || days[0] == '+' {
			return 0, wrong
		}
		text = rest
	}
	var more time.Duration
	if text != "" || !some {
		var err error
		if more, err = time.ParseDuration(text); err != nil || some && (more < 0 || strings.HasPrefix(text, "+")) {
			return 0, wrong
		}
	}
	return time.Duration(n)*24*time.Hour + more, nil
}

// durationFlag adds a flag for a duration of least or more, which is set to standard without the flag.
func durationFlag(f *pflag.FlagSet, to *time.Duration, name string, standard, least time.Duration, usage string) {
	*to = standard
	f.Var(&value[time.Duration]{to, "duration", func(text string) (time.Duration, error) {
		d, err := readDuration(text)
		if err == nil && d < least {
			err = fmt.Errorf("want %s or more", limit.DurationText(least))
		}
		return d, err
	}, func(d time.Duration) string {
		if d == 0 {
			return "0"
		}
		return limit.DurationText(d)
	}}, name, usage)
}

// numberFlag adds a flag for a whole number within least..most, which is set to standard without the flag. If most is
// math.MaxInt64, the error about another number does not name it.
func numberFlag[N int | int64](f *pflag.FlagSet, to *N, name string, standard, least, most N, usage string) {
	*to = standard
	want := fmt.Sprintf("want a number within %d..%d", least, most)
	if int64(most) == math.MaxInt64 {
		want = fmt.Sprintf("want a number of %d or more", least)
	}
	f.Var(&value[N]{to, "int", func(text string) (N, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < int64(least) || n > int64(most) {
			return 0, errors.New(want)
		}
		return N(n), nil
	}, func(n N) string { return strconv.FormatInt(int64(n), 10) }}, name, usage)
}

// wordFlag adds a flag for one of a few words, which shells complete. It is set to standard without the flag.
func wordFlag(c *cobra.Command, to *string, name, standard, usage string, words ...string) {
	*to = standard
	c.Flags().Var(&value[string]{to, "string", func(text string) (string, error) {
		if last := len(words) - 1; !slices.Contains(words, text) {
			return "", fmt.Errorf("want %s or %s", strings.Join(words[:last], ", "), words[last])
		}
		return text, nil
	}, strings.Clone}, name, usage)
	// This fails only for a flag that does not exist.
	_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// logLevelFlag adds the flag for the least level of the messages that are logged.
func logLevelFlag(c *cobra.Command, to *string) {
	wordFlag(c, to, "log-level", "info", "`LEVEL` is debug, info, warn or error", "debug", "info", "warn", "error")
}

// logger returns a logger for a level of logLevelFlag. format is text or json.
func logger(to io.Writer, level, format string) *slog.Logger {
	var options slog.HandlerOptions
	var least slog.Level
	_ = least.UnmarshalText([]byte(level)) // the flag accepts no other text
	if options.Level = least; format == "json" {
		return slog.New(slog.NewJSONHandler(to, &options))
	}
	return slog.New(slog.NewTextHandler(to, &options))
}

// storeSizeFlag adds the flag for the memory of counters, in MiB.
func storeSizeFlag(f *pflag.FlagSet, to *int64) {
	numberFlag(f, to, "store-mb", memory.DefaultMaxBytes>>20, 1, 1<<20,
		"most memory for counters that are kept in memory, in `MiB`")
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
