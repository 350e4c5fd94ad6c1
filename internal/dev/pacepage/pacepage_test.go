package pacepage_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/pacepage"
	"github.com/sluicelimits/sluice/internal/limiter/ledger"
	"github.com/sluicelimits/sluice/pacer"
)

// read returns data.json as it is served.
func read(t *testing.T, w *pacepage.Watcher) (d pacepage.Data, body string) {
	t.Helper()
	rec := httptest.NewRecorder()
	w.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/data.json", nil))
	if err := json.Unmarshal(rec.Body.Bytes(), &d); err != nil {
		t.Fatalf("data.json: %v in %.300s", err, rec.Body)
	}
	return d, rec.Body.String()
}

// watch makes a pacer at the beginning of a second, and watches it.
func watch(t *testing.T, c pacer.Config, about pacepage.About) (*pacer.Pacer, *pacepage.Watcher) {
	t.Helper()
	<-time.After(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
	p, err := pacer.New(c)
	if err != nil {
		t.Fatal(err)
	}
	w := pacepage.NewWatcher(p, about)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); p.Close() })
	go w.Run(ctx)
	return p, w
}

const columns = 60 // seconds that data.json has

// No bar of the page is above the limit, also if the watcher begins late in a window that then grants all of its units.
func TestFirstWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		<-time.After(700 * time.Millisecond)
		p, err := pacer.New(pacer.Config{Limit: pacer.PerSecond(10)})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		w := pacepage.NewWatcher(p, pacepage.About{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go w.Run(ctx)
		enqueue(t, p, "a", 40)
		<-time.After(3 * time.Second)
		if d, _ := read(t, w); slices.Max(d.Granted) != 10 {
			t.Errorf("granted in each second %v, want at most 10", d.Granted)
		}
	})
}

func enqueue(t *testing.T, p *pacer.Pacer, key string, n int) {
	t.Helper()
	for range n {
		if _, err := p.Enqueue(key, 1, pacer.Forever, pacer.WakerFunc(func(pacer.Permit, error) {})); err != nil {
			t.Fatal(err)
		}
	}
}

// Guarantees that the page has what happened in each of the last seconds, in total and for each key, and never more in
// a second than the limit.
func TestData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, w := watch(t, pacer.Config{Limit: pacer.PerSecond(10)}, pacepage.About{Command: "test"})
		for range 10 {
			p.TryAcquire(1)
		}
		enqueue(t, p, "a", 30) // served in three seconds, together with b
		enqueue(t, p, "b", 15)
		enqueue(t, p, "c</script>", 3)
		<-time.After(3*time.Second + 600*time.Millisecond)
		d, body := read(t, w)
		if strings.Contains(body, "</script>") {
			t.Error("markup of a key's name is in data.json")
		}
		if got, want := fmt.Sprint(d.Granted[56:]), "[10 10 10 10]"; got != want {
			t.Errorf("granted %s, want %s", got, want)
		}
		if got, want := fmt.Sprint(d.Queued[56:]), "[48 38 28 18]"; got != want {
			t.Errorf("waiting %s, want %s", got, want)
		}
		if got, want := fmt.Sprint(d.Limits[56:]), "[10 10 10 10]"; got != want {
			t.Errorf("limits %s, want %s", got, want)
		}
		if d.Waiting != 18 || d.WaitingUnits != 18 || d.Waits.Count != 40 || d.Waits.P50Ms != 1024 ||
			d.Totals.AtOnce != 10 || d.Limit.PerSecond != 10 || d.Limit.Used != 10 || d.About.Command != "test" {
			t.Errorf("data is %s", body)
		}
		var keys []string
		for _, k := range d.Keys {
			keys = append(keys, fmt.Sprint(k.Key, " ", k.Waiting, " ", k.Granted, " ", k.Waits.P99Ms))
		}
		if got, want := fmt.Sprint(keys), "[a 16 14 3072 b 2 13 3072 c</script> 0 3 1024]"; got != want {
			t.Errorf("keys %s, want %s", got, want)
		}
		<-time.After(2 * time.Minute)
		if d, _ = read(t, w); len(d.Keys) != 0 || d.Others != nil || d.Waits.Count != 0 || d.Waiting != 0 ||
			slices.Max(d.Granted) != 0 || d.Totals.Granted != 58 {
			t.Errorf("after two minutes without requests: %+v", d)
		}
	})
}

// Guarantees that the sum over the rows of all keys is what was granted, also while keys come and go.
func TestManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, w := watch(t, pacer.Config{Limit: pacer.PerSecond(200)}, pacepage.About{})
		n := 0
		for second := range 300 {
			for range 200 {
				p.TryAcquire(1)
			}
			for range 200 { // all of them wait for the next second
				n++
				enqueue(t, p, fmt.Sprint("key ", n%7, " ", second/100), 1)
			}
			enqueue(t, p, fmt.Sprint("new ", n), 1)
			<-time.After(time.Second)
			if second < 61 || second%20 != 0 {
				continue
			}
			d, _ := read(t, w)
			var granted, waits int64
			rows := d.Keys
			if d.Others != nil {
				rows = append(rows, *d.Others)
			}
			for _, k := range rows {
				granted, waits = granted+k.Granted, waits+k.Waits.Count
			}
			sum := int64(0)
			for _, g := range d.Granted {
				sum += g
			}
			if len(d.Keys) != pacepage.MaxKeys || granted != sum || waits != sum || d.Waits.Count != sum {
				t.Fatalf("second %d: %d rows have %d units and %d waits; %d were granted", second, len(d.Keys), granted,
					waits, sum)
			}
		}
	})
}

// failing is a ledger that may be away.
type failing struct {
	pacer.Ledger

	away atomic.Bool
}

func (f *failing) Claim(ctx context.Context, key string, c ledger.Claim) (ledger.Lease, error) {
	if f.away.Load() {
		return ledger.Lease{}, errors.New("away")
	}
	return f.Ledger.Claim(ctx, key, c)
}

// Guarantees that errors of the store are shown.
func TestStoreErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &failing{Ledger: pacer.NewMemoryLedger()}
		shared := &pacer.Shared{Ledger: store, Key: "a"}
		p, w := watch(t, pacer.Config{Limit: pacer.PerSecond(10), Shared: shared}, pacepage.About{Store: "here"})
		<-time.After(5 * time.Second)
		if d, _ := read(t, w); d.Totals.StoreCalls == 0 || d.Totals.StoreErrors != 0 {
			t.Errorf("the store answers: %+v", d.Totals)
		}
		store.away.Store(true)
		<-time.After(5 * time.Second)
		d, _ := read(t, w)
		if failed := d.Failed[columns-1]; d.Totals.StoreErrors == 0 || failed == 0 || slices.Max(d.Failed[:50]) != 0 {
			t.Errorf("the store is away: %+v, and failed calls per second %v", d.Totals, d.Failed)
		}
		p.Close()
	})
}

// Guarantees that the page is small, and that its security policy needs not be looser for it.
func TestPageIsPlain(t *testing.T) {
	total := 0
	for _, file := range []string{"index.html", "page.js"} {
		body, err := os.ReadFile("page/" + file)
		if err != nil {
			t.Fatal(err)
		}
		total += len(body)
		for what, pattern := range map[string]string{
			"an address of another host": `(?:https?:)?//[a-z0-9-]+\.[a-z]`,
			"an inline style or handler": `<[^>]+\s(style|on[a-z]+)=`,
			"markup made of text":        `innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function`,
			"an inline script":           `<script(?:>|[^>]*[^"]>)`,
		} {
			if found := regexp.MustCompile(pattern).Find(body); found != nil {
				t.Errorf("%s holds %s: %s", file, what, found)
			}
		}
	}
	if total > 12<<10 {
		t.Errorf("the page is %d bytes, want at most %d", total, 12<<10)
	}
	p, err := pacer.New(pacer.Config{Limit: pacer.PerSecond(1)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	h := pacepage.NewWatcher(p, pacepage.About{}).Handler()
	for _, file := range []string{"", "page.js", "common.js", "page.css", "icon.svg", "data.json"} {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/"+file, nil))
		if rec.Code != http.StatusOK || !strings.Contains(rec.Header().Get("Content-Security-Policy"),
			"default-src 'none'") {
			t.Errorf("%q: %d, %v", file, rec.Code, rec.Header())
		}
	}
}
