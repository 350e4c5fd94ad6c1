package pacer_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// broken are variants of this package with one mistake each. The tests must fail with each of them.
var broken = []struct {
	mistake  string
	file     string
	old, new string
}{
	{"a permit gives back twice", "permit.go", "p.cost = spent\n", ""},
	{"units come back in another window", "supply.go", "serial != s.serial || ", ""},
	{"units come back after their window has closed", "supply.go",
		" || now >= s.closes {\n\t\treturn false\n\t}\n\ts.used = max",
		" {\n\t\treturn false\n\t}\n\ts.used = max"},
	{"no guard at the beginning of a window", "supply.go",
		"s.opens = s.begin + s.clockError()",
		"s.opens = s.begin"},
	{"no guard for the clock at the end", "supply.go",
		"period - s.clockError() - s.guard",
		"period - s.guard"},
	{"no guard for the delay", "supply.go", " - s.guard.MaxDelay", ""},
	{"UseBy is the end of the window", "permit.go",
		"p.pacer.timeOf(p.useBy)",
		"p.pacer.timeOf(p.useBy + p.pacer.core.supply.guard.unused())"},
	{"requests overtake those who wait", "pacer.go", "\tif p.core.queue.waiting == 0 && cost", "\tif cost"},
	{"a new key starts at tag 0", "queue.go", "start: q.virtual", "start: 0"},
	{"a key that runs empty is forgotten at once", "queue.go", "q.idle.push(k)", "delete(q.keys, k.name)"},
	{"weights are ignored", "queue.go", "total/k.weight, total%k.weight", "total, 0"},
	{"the last of a key is served first", "queue.go",
		"return q.busy.items[0].head\n",
		"return q.busy.items[0].tail\n"},
	{"a canceled ticket keeps its place", "pacer.go",
		"\tq.remove(i)\n\tp.core.counts.Canceled",
		"\tq.at(i).waker = WakerFunc(func(Permit, error) {})\n\tp.core.counts.Canceled"},
	{"a ticket cancels whoever has its place", "queue.go", " || q.at(t.node).serial != t.serial", ""},
	{"who follows a canceled ticket is not served", "pacer.go",
		"first && next != 0 && q",
		"first && next != 0 && p.closed && q"},
	{"the timer keeps an old time", "pacer.go", "if p.timerAt <= at {", "if p.timerAt != never {"},
	{"the timer does not know of deadlines", "core.go", "deadline < at {", "deadline < 0 {"},
	{"a grant is lost when the context ends", "pacer.go",
		"<-w.done // the grant came first: it must not be lost",
		"<-w.done\n\t\treturn Permit{}, context.Cause(ctx)"},
	{"a changed limit does not reach the open window", "supply.go",
		"\tdefault:\n\t\ts.resize()\n",
		"\tdefault:\n"},
	{"windows of a new length begin at once", "supply.go",
		"s.open(floorDiv(s.read.Wall, l.Period), 0)",
		"s.open(floorDiv(s.read.Wall, l.Period), l.Units)"},
	{"nobody is refused", "pacer.go", "if earliest > latest {", "if earliest > latest && p.closed {"},
	{"all who wait count as being ahead", "core.go", "c.queue.unitsBefore(key), cost", "c.queue.units, cost"},
	{"a jump of the clock is not noticed", "supply.go", "return step(last, now) >", "return -step(last, now) >"},
	{"a window is opened twice", "supply.go", "case number > s.number:", "case number != s.number:"},
	{"the rate to catch up has no bound", "smooth.go",
		"return most, true",
		"return rate, true"},
	{"nothing is caught up with", "smooth.go",
		"rate = slope + proportionalGain*behind + integralGain*m.integral",
		"rate = slope"},
	{"progress goes ahead of the line", "smooth.go",
		" && now >= l.reached(used)",
		""},
	{"what nobody waited for is granted in a burst", "smooth.go",
		"m.credit = min(m.credit, 0)",
		"m.credit = max(m.credit, 0)"},
	{"time in which the process was held up is lost", "smooth.go",
		"m.credit += rate * passed",
		"m.credit += rate * min(passed, 0.001)"},
	{"each window begins with the credit of the last", "smooth.go",
		"{ *m = smoother{at: at} }",
		"{ m.at = at }"},
	{"a ticket is told of too late a time", "supply.go",
		"s.lineFrom(opens, units).reached(used+before))",
		"s.lineFrom(opens, units).reached(used+before+cost))"},
	{"refusals of requests from before a cut cut again", "learn.go", "case sent >= r.cutAt:", "default:"},
	{"what little demand accepts raises the rate", "learn.go", " || accepted < learnUsed*r.rate", ""},
	{"a provider that bans is probed", "learn.go", "case r.bans || idle", "case idle"},
	{"the rate is learned above the limit", "learn.go", "r.rate = min(r.rate, r.most)", ""},
	{"a provider can stop the pacer for good", "supply.go", "received+min(a.RetryAfter, LongestPause))",
		"received+a.RetryAfter)"},
	{"units in flight are not taken off", "supply.go", "l.Units-(granted-total)", "l.Units"},
	{"an old reply is believed", "supply.go", "total >= b.total", "total >= 0"},
	{"a reply raises the limit", "supply.go", "units = min(units, bound)", "units = bound"},
	{"units that are given back are spent nevertheless", "share.go", "\tc.supply.units -= excess\n", ""},
	{"leased units are spent in another window", "supply.go", "s.next.window != number", "s.next.window == 0"},
	{"a reply counts for both windows", "share.go", "sh.window != claim.Window", "sh.window < 0"},
	{"what is leased late counts twice", "share.go",
		"c.supply.nextUnits(claim.Window) + got.Units",
		"c.supply.nextUnits(claim.Window) + 2*got.Units"},
	{"a changed limit is not heard of", "supply.go", "if s.next.limit > 0 {", "if s.next.limit < 0 {"},
	{"Close gives nothing back", "share.go", "units = min(units, held); units > 0",
		"units = min(units, held); units < 0"},
	{"an empty ledger leases at once", ledgerFile, "c.Window >= e.First", "c.Window >= 0"},
	{"an empty ledger forgets clocks that are ahead", ledgerFile, "\t\t\te.First++\n", ""},
	{"the ledger leases what is not left", ledgerFile, "left := max(limit-r.Leased, 0)", "left := limit"},
	{"a window that is open gets another limit", ledgerFile, "if r := e.look(window); r.Limit != 0 {",
		"if r := e.look(window); r.Limit < 0 {"},
	{"a limit changes in a window that was leased", ledgerFile, "if from <= latest {", "if from < latest {"},
	{"units come back in any window", ledgerFile, "case r.Limit != 0 && r.Window > window:\n\t\treturn nil",
		"case r.Limit != 0 && r.Window > window:\n\t\treturn r"},
	{"a Date is taken as exact", measureFile, "date + time.Second - sent", "date - sent"},
	{"the delay of a Date is forgotten", measureFile, "bound{date - received, received}",
		"bound{date - sent, received}"},
	{"a measurement never ages", measureFile, "const clockDrift = 100e-6", "const clockDrift = 0.0"},
	{"a measurement survives a jump", "supply.go", "*s.measure = measurement{}", "_ = measurement{}"},
	{"the Date of a cache is believed", measureFile, `if h.Get("Age") != "" {`, `if h.Get("Age") == "-" {`},
	{"a measurement beyond the guard is ignored", measureFile, "case lowest > high:", "case lowest < 0:"},
	{"the remainder stays with the same instances", "part.go", "moved := (window % p.instances) * rest % p.instances",
		"moved := int64(0)"},
	{"each part is rounded up", "part.go", "%p.instances < rest {", "%p.instances < rest || rest > 0 {"},
	{"a plan holds at once", "supply.go", "\t\ts.part.begin(number)\n",
		"\t\ts.part.from = 0\n\t\ts.part.begin(number)\n"},
	{"an instance that is not in the plan has a part", "part.go", "if p.index >= p.instances {", "if p.index < 0 {"},
	{"Close leaves tickets behind", "core.go",
		"\t\tout[n] = outcome{waker: c.queue.at(i).waker, err: err}\n",
		"\t\t_ = err\n\t\tout[n] = outcome{waker: WakerFunc(func(Permit, error) {})}\n"},
}

const (
	ledgerFile  = "../internal/limiter/ledger/ledger.go"
	measureFile = "clockmeasure.go"
)

// At least one test fails for each mistake that is planted in the code. So the tests of the guarantees can fail.
func TestMistakesAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles this package once for each mistake")
	}
	if os.Getenv("SLUICE_PACER_BROKEN") != "" {
		t.Skip("this is a run with a mistake")
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	every := 10 // all of them take minutes
	if os.Getenv("SLUICE_SOAK") != "" {
		every = 1
	}
	for i, b := range broken {
		if i%every != 0 {
			continue
		}
		t.Run(b.mistake, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(dir, b.file)
			code, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(code), b.old); n != 1 {
				t.Fatalf("%s has %q %d times, want once", b.file, b.old, n)
			}
			temp := t.TempDir()
			changed, overlay := filepath.Join(temp, "changed.go"), filepath.Join(temp, "overlay.json")
			replaced, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(changed, []byte(strings.Replace(string(code), b.old, b.new, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(overlay, replaced, 0o600); err != nil {
				t.Fatal(err)
			}
			test := func(flags ...string) (found bool, out string) {
				flags = append([]string{"test", "-vet=off", "-count=1", "-failfast", "-timeout=3m",
					"-overlay=" + overlay}, flags...)
				c := exec.CommandContext(t.Context(), "go", append(flags, ".", "../internal/limiter/ledger")...)
				c.Env = append(os.Environ(), "SLUICE_PACER_BROKEN=1", "SLUICE_SOAK=1")
				text, err := c.CombinedOutput()
				out = string(text)
				return err != nil && !strings.Contains(out, "[build failed]") && strings.Contains(out, "FAIL"), out
			}
			if found, _ := test("-short"); found { // with SLUICE_SOAK, so that random tests are not shortened
				return
			}
			if found, out := test(); !found { // some mistakes show only in the tests that a short run skips
				t.Errorf("no test fails with it:\n%s", out)
			}
		})
	}
}
