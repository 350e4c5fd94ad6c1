// Package audittest tests the contract of audit.Archive.
package audittest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluicelimits/sluice/internal/control/audit"
)

// Run runs all cases, each on a new archive. fresh makes an archive and returns a function; each call of that function
// returns another handle on the archive.
func Run(t *testing.T, fresh func(t *testing.T) (handle func() audit.Archive)) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if err := c.run(t.Context(), fresh(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// Broken returns the names of the cases that fail.
func Broken(t *testing.T, fresh func(t *testing.T) (handle func() audit.Archive)) []string {
	t.Helper()
	var names []string
	for _, c := range cases {
		if c.run(t.Context(), fresh(t)) != nil {
			names = append(names, c.name)
		}
	}
	return names
}

var cases = []struct {
	name string
	run  func(ctx context.Context, handle func() audit.Archive) error
}{
	{"an object is read as it was put", reads},
	{"a put of an equal object succeeds, of a different one is refused and changes nothing", refuses},
	{"one of several concurrent writers makes the object", races},
	{"lists are in order, by prefix and from a name on", lists},
	{"an absent object is reported as such", missing},
	{"names and sizes are bounded", bounds},
	{"Cover puts a version over the existing ones, or does nothing", covers},
	{"a call that is cancelled is an error", cancelled},
}

// Records are read to be hashed: one byte that differs looks like tampering.
func reads(ctx context.Context, handle func() audit.Archive) error {
	a := handle()
	for i, data := range [][]byte{{}, []byte("{}"), []byte("\x00\xff\r\n"), bytes.Repeat([]byte("x"), audit.MaxBytes)} {
		name := fmt.Sprintf("audit/a/k!2F/%d.json", i)
		if made, err := a.Put(ctx, name, data); err != nil || !made {
			return fmt.Errorf("put %s: made %t, %w", name, made, err)
		}
		o, err := handle().Get(ctx, audit.Entry{Name: name})
		if err != nil || !bytes.Equal(o.Data, data) {
			return fmt.Errorf("%s has %d bytes, want the %d that were put: %w", name, len(o.Data), len(data), err)
		}
	}
	return nil
}

// The archiver may repeat any put; and nobody may overwrite its objects.
func refuses(ctx context.Context, handle func() audit.Archive) error {
	if _, err := handle().Put(ctx, "audit/a/1", []byte("one")); err != nil {
		return err
	}
	for range 2 {
		if made, err := handle().Put(ctx, "audit/a/1", []byte("one")); err != nil || made {
			return fmt.Errorf("the same again: made %t, %w", made, err)
		}
		for _, other := range []string{"two", "", "one "} {
			if made, err := handle().Put(ctx, "audit/a/1", []byte(other)); !errors.Is(err, audit.ErrUnequal) || made {
				return fmt.Errorf("another: made %t, %w; want ErrUnequal", made, err)
			}
		}
	}
	return has(ctx, handle(), "", "", "audit/a/1=one")
}

// Two archivers may run at once, after a retry by Lambda.
func races(ctx context.Context, handle func() audit.Archive) error {
	var made, unequal, other atomic.Int64
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			ok, err := handle().Put(ctx, "audit/a/1", []byte{byte('a' + i%2)})
			switch {
			case ok:
				made.Add(1)
			case errors.Is(err, audit.ErrUnequal):
				unequal.Add(1)
			case err != nil:
				other.Add(1)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 || unequal.Load() != 8 || other.Load() != 0 {
		return fmt.Errorf("of 16 writers %d made the object, %d were refused, %d met errors; want 1, 8, 0",
			made.Load(), unequal.Load(), other.Load())
	}
	return nil
}

// Verify and Show rely on the order: an object out of order looks like a missing version.
func lists(ctx context.Context, handle func() audit.Archive) error {
	a := handle()
	names := []string{"audit/a-b/1", "audit/a.b/1", "audit/a/1", "audit/a/2", "audit/a!20/1", "audit/b/1", "audit/A/1",
		"rejected/1"}
	for _, n := range names {
		if _, err := a.Put(ctx, n, []byte(n)); err != nil {
			return err
		}
	}
	slices.Sort(names)
	for _, prefix := range []string{"", "audit/", "audit/a", "audit/a/", "audit/a/2", "none", "rejected/"} {
		for _, after := range append([]string{"", "audit/a/", "audit/a/9", "zzz", "audit/a"}, names...) {
			var want []string
			for _, n := range names {
				if strings.HasPrefix(n, prefix) && n > after {
					want = append(want, n+"="+n)
				}
			}
			if err := has(ctx, handle(), prefix, after, want...); err != nil {
				return err
			}
		}
	}
	for _, err := range a.List(ctx, "", "") {
		return err // a caller may end the iteration
	}
	return errors.New("the list of all objects is empty")
}

// has compares a list and the contents of its objects.
func has(ctx context.Context, a audit.Archive, prefix, after string, want ...string) error {
	var got []string
	for e, err := range a.List(ctx, prefix, after) {
		if err != nil {
			return err
		}
		o, err := a.Get(ctx, e)
		if err != nil {
			return err
		}
		if e.DeleteMarker || e.PutAt.IsZero() || e.SizeBytes != int64(len(o.Data)) {
			return fmt.Errorf("the entry %+v of an object with %d bytes", e, len(o.Data))
		}
		got = append(got, e.Name+"="+string(o.Data))
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("list of %q after %q:\ngot  %q\nwant %q", prefix, after, got, want)
	}
	return nil
}

// A missing version must differ from one that cannot be read.
func missing(ctx context.Context, handle func() audit.Archive) error {
	if _, err := handle().Put(ctx, "audit/a/1", []byte("one")); err != nil {
		return err
	}
	for _, name := range []string{"audit/a/2", "audit/b/1"} {
		if _, err := handle().Get(ctx, audit.Entry{Name: name}); !errors.Is(err, audit.ErrNotFound) {
			return fmt.Errorf("get of %s: %w, want ErrNotFound", name, err)
		}
	}
	return nil
}

func bounds(ctx context.Context, handle func() audit.Archive) error {
	a := handle()
	if _, err := a.Put(ctx, "audit/a", make([]byte, audit.MaxBytes+1)); !errors.Is(err, audit.ErrTooLarge) {
		return fmt.Errorf("an object of more than MaxBytes: %w, want ErrTooLarge", err)
	}
	for _, name := range []string{"", strings.Repeat("x", 1025)} {
		if _, err := a.Put(ctx, name, nil); err == nil {
			return fmt.Errorf("a name of %d bytes is taken", len(name))
		}
	}
	return nil
}

// If a name was taken, the right object is stored too, and neither is lost.
func covers(ctx context.Context, handle func() audit.Archive) error {
	a := handle()
	if _, err := a.Put(ctx, "audit/a/1", []byte("one")); err != nil {
		return err
	}
	err := handle().Cover(ctx, "audit/a/1", []byte("another"))
	if errors.Is(err, errors.ErrUnsupported) {
		return has(ctx, a, "", "", "audit/a/1=one")
	}
	if err != nil {
		return err
	}
	if o, err := a.Get(ctx, audit.Entry{Name: "audit/a/1"}); err != nil || string(o.Data) != "another" {
		return fmt.Errorf("the newest version is %q, %w", o.Data, err)
	}
	if err := a.Cover(ctx, "audit/a/2", make([]byte, audit.MaxBytes+1)); !errors.Is(err, audit.ErrTooLarge) {
		return fmt.Errorf("an object of more than MaxBytes: %w, want ErrTooLarge", err)
	}
	return has(ctx, handle(), "", "", "audit/a/1=another", "audit/a/1=one")
}

// The end of an invocation must end its calls.
func cancelled(ctx context.Context, handle func() audit.Archive) error {
	a := handle()
	if _, err := a.Put(ctx, "audit/a/1", []byte("one")); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	_, put := a.Put(ctx, "audit/a/2", nil)
	_, get := a.Get(ctx, audit.Entry{Name: "audit/a/1"})
	var list error
	for _, err := range a.List(ctx, "", "") {
		list = err
	}
	for _, err := range []error{put, get, list} {
		if !errors.Is(err, context.Canceled) {
			return fmt.Errorf("put %w, get %w, list %w; want context.Canceled", put, get, list)
		}
	}
	return nil
}
