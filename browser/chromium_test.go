package browser

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// findChromium returns the browser's path. Without a browser it skips the test, or fails it if REQUIRE_BROWSER=1.
func findChromium(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("short tests do not start a browser")
	}
	names := []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome",
		"headless-shell"}
	if p := os.Getenv("SLUICE_CHROMIUM"); p != "" {
		names = []string{p}
	}
	for _, n := range names {
		if p, err := exec.LookPath(n); err == nil {
			return p
		}
	}
	message := fmt.Sprintf("no Chromium found as %s: install it, or set SLUICE_CHROMIUM to its path",
		strings.Join(names, ", "))
	if os.Getenv("REQUIRE_BROWSER") == "1" {
		t.Fatal(message + " (REQUIRE_BROWSER=1)")
	}
	t.Skip(message)
	return ""
}

// view is a theme and a window size with which a page is shown.
type view struct {
	theme         string // "light" or "dark": the preference of the operating system
	width, height int64
}

func (v view) String() string { return fmt.Sprintf("%s %d", v.theme, v.width) }

var views = []view{{"light", 1400, 900}, {"dark", 1400, 900}, {"light", 360, 740}, {"dark", 360, 740}}

// tab is one page in a newly started Chromium. It records what the browser reports about the page.
type tab struct {
	t      *testing.T
	ctx    context.Context
	origin string // scheme and host of the page; "file://" for a file

	mu       sync.Mutex
	problems []string // console errors and warnings, exceptions, failed loads
	requests []string // every URL that the page requested
}

// openTab opens a page. A test calls wantNoComplaints at its end.
func openTab(t *testing.T, address string, v view) *tab {
	t.Helper()
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(findChromium(t)), // with a new folder for the user's data, which is deleted at the end
		chromedp.Flag("headless", "new"), chromedp.Flag("no-sandbox", true), chromedp.Flag("disable-gpu", true),
		chromedp.Flag("disable-quic", true), chromedp.Flag("no-first-run", true), chromedp.Flag("hide-scrollbars",
			true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.WSURLReadTimeout(time.Minute),
	}
	ctx, cancelTime := context.WithTimeout(t.Context(), 3*time.Minute)
	ctx, cancelBrowser := chromedp.NewExecAllocator(ctx, options...)
	ctx, cancelTab := chromedp.NewContext(ctx)
	t.Cleanup(func() { cancelTab(); cancelBrowser(); cancelTime() })

	u, err := url.Parse(address)
	if err != nil {
		t.Fatalf("address %q: %v", address, err)
	}
	p := &tab{t: t, ctx: ctx, origin: u.Scheme + "://" + u.Host}
	p.must("start Chromium", chromedp.Listen(ctx, p.recordEvent))
	_, err = chromedp.Call(ctx, network.Enable, network.EnableParams{})
	p.must("watch the network", err)
	_, err = chromedp.Call(ctx, log.Enable, cdp.Empty{})
	p.must("watch the log", err)
	_, err = chromedp.Call(ctx, runtime.Enable, cdp.Empty{})
	p.must("watch the console", err)
	p.setView(v)
	p.must("open "+address, chromedp.Do(ctx, chromedp.Navigate(address)))
	return p
}

// recordEvent records what the browser reports about the page.
func (p *tab) recordEvent(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning ||
			e.Type == runtime.ConsoleAPICalledTypeAssert {
			words := make([]string, 0, len(e.Args))
			for _, a := range e.Args {
				words = append(words, string(a.Value)+a.Description)
			}
			p.problems = append(p.problems, fmt.Sprintf("console %s: %s", e.Type, strings.Join(words, " ")))
		}
	case *runtime.EventExceptionThrown:
		what := e.ExceptionDetails.Text
		if x := e.ExceptionDetails.Exception; x != nil {
			what += " " + x.Description
		}
		p.problems = append(p.problems, "exception: "+what)
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			p.problems = append(p.problems, fmt.Sprintf("%s %s: %s %s", e.Entry.Source, e.Entry.Level, e.Entry.Text,
				e.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.URL)
	}
}

// wantNoComplaints fails the test if the browser reported a problem of the page, or if the page sent a request to
// another origin.
func (p *tab) wantNoComplaints() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.problems {
		p.t.Errorf("the page at %s reports: %s", p.origin, w)
	}
	if len(p.requests) == 0 {
		p.t.Error("no request was recorded, so the check for other origins checked nothing")
	}
	for _, r := range p.requests {
		if !strings.HasPrefix(r, p.origin+"/") && !strings.HasPrefix(r, "data:") {
			p.t.Errorf("the page at %s sent a request to %s", p.origin, r)
		}
	}
}

// setView sets the size and the system's theme.
func (p *tab) setView(v view) {
	p.t.Helper()
	_, err := chromedp.Call(p.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: v.width, Height: v.height, DeviceScaleFactor: 1, Mobile: v.width < 500,
	})
	p.must("set the size "+v.String(), err)
	_, err = chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: v.theme}, {Name: "prefers-reduced-motion", Value: "reduce"},
		},
	})
	p.must("set the theme "+v.String(), err)
}

func (p *tab) must(what string, err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
}

// eval returns the value of a JavaScript expression. If that is a promise, it returns the value of the promise.
func eval[T any](p *tab, expression string) T {
	p.t.Helper()
	value, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	p.must("evaluate "+expression, err)
	return value
}

// until waits until a JavaScript expression is true, for at most 20 s.
func (p *tab) until(expression string) {
	p.t.Helper()
	met := eval[bool](p, fmt.Sprintf(`new Promise((done) => {
		const start = Date.now();
		(function look() {
			if (%s) done(true); else if (Date.now() - start > 20000) done(false); else setTimeout(look, 20);
		})();
	})`, expression))
	if !met {
		p.t.Fatalf("not met within 20 s: %s", expression)
	}
}

// texts returns the text of each element that matches, in document order.
func (p *tab) texts(selector string) []string {
	p.t.Helper()
	return eval[[]string](p, fmt.Sprintf("[...document.querySelectorAll(%q)].map((e) => e.textContent)", selector))
}

// picture writes a screenshot of the whole page to a file, if SLUICE_SCREENSHOTS names a folder.
func (p *tab) picture(name string) {
	p.t.Helper()
	dir := os.Getenv("SLUICE_SCREENSHOTS")
	if dir == "" {
		return
	}
	whole, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
	p.must("take a picture", err)
	p.must("make "+dir, os.MkdirAll(dir, 0o755))
	small, err := reduceColours(whole)
	p.must("make the picture small", err)
	file := filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".png")
	p.must("write the picture", os.WriteFile(file, small, 0o600))
}

// reduceColours draws a picture in its 64 most frequent colours. The pages have few colours, and shades of them at the
// edges of letters. Only small spots of a rare colour change visibly, and the file has a third of the size.
func reduceColours(picture []byte) ([]byte, error) {
	img, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		return nil, err
	}
	count := make(map[color.Color]int)
	bounds := img.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			count[img.At(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return count[b] - count[a] })
	out := image.NewPaletted(bounds, colours[:min(64, len(colours))])
	draw.Draw(out, bounds, img, bounds.Min, draw.Src)
	var small bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, out)
	return small.Bytes(), err
}
