package pacer_test

import (
	"os"
	"testing"

	"github.com/sluicelimits/sluice/internal/testkit/mistake"
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
	{"requests overtake those who wait", "pacer.go", "p.now(); p.core.queue.waiting == 0 && cost", "p.now(); cost"},
	{"a new key starts at tag 0", "queue.go", "start: q.virtual", "start: 0"},
	{"a key that runs empty is forgotten at once", "queue.go", "q.idle.push(k)", "delete(q.keys, k.name)"},
	{"weights are ignored", "queue.go", "total/k.weight, total%k.weight", "total, 0"},
	{"the last of a key is served first", "queue.go",
		"return q.busy.items[0].head\n",
		"return q.busy.items[0].tail\n"},
	{"a canceled ticket keeps its place", "queue.go",
		"\t\tq.unlink(i)\n\t}\n",
		"\t\tq.at(i).waker = WakerFunc(func(Permit, error) {})\n\t}\n"},
	{"the counts of a queue have canceled tickets", "queue.go", "\t\tq.discount(i)\n\t}\n", "\t\t_ = i\n\t}\n"},
	{"a ticket is canceled twice", "queue.go", "\t*q.serial(i) = 0\n\tq.waiting--\n\tq.canceled[",
		"\tq.waiting--\n\tq.canceled["},
	{"a ticket cancels whoever has its place", "queue.go", " || *q.serial(t.node) != t.serial", ""},
	{"who follows a canceled ticket is not served", "pacer.go",
		"; next != 0 && q",
		"; next != 0 && p.closed && q"},
	{"the timer keeps an old time", "pacer.go", "if p.timerAt <= at {", "if p.timerAt != never {"},
	{"the timer does not know of deadlines", "core.go", "deadline < at {", "deadline < 0 {"},
	{"a grant is lost when the context ends", "pacer.go",
		"\t<-w.done // the grant came first\n\treturn false",
		"\t<-w.done\n\treturn true"},
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
	{"what little demand accepts raises the rate", "learn.go", "accepted >= learnUsed*math", "accepted >= 0*math"},
	{"a provider that bans is probed", "learn.go", "case r.bans || idle", "case idle"},
	{"the rate is learned above the limit", "learn.go", "l.rate = min(l.rate, most)", ""},
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
	{"a request of a shared limit is granted more than was leased", "supply.go", "\t\t!s.shared && s.used == 0",
		"\t\ts.used == 0"},
	{"a pause of another instance is not heard", "share.go", "if pause > s.heard {", "if pause < 0 {"},
	{"a pause is heard again and again", "share.go", "\t\ts.heard = pause\n", ""},
	{"a pause of another instance never ends", "share.go", "-read.Wall, LongestPause)", "-read.Wall, never-read.Mono)"},
	{"each refusal calls the ledger", "share.go", "+c.supply.limit.Period/4", ""},
	{"the learned rate does not bound all instances", learnFile, "limit = min(limit, e.Learned.Rate/LearnedOne)",
		"limit = max(limit, 0)"},
	{"a stated limit does not bound all instances", learnFile, "limit = min(limit, e.Stated)", "limit = max(limit, 0)"},
	{"a judgement of an old state counts", learnFile, " && c.Expect == l.Judged", ""},
	{"a changed limit keeps what was learned", ledgerFile, "\te.forget()\n", ""},
	{"refusals from before a cut lower the shared rate", "group.go", "case c.Interval-int64(i) < l.From:",
		"case c.Interval < 0:"},
	{"accepted units of a lost call are told twice", "group.go", "\t\t\tg.untold[ago].Refused = min(",
		"\t\t\tg.untold[ago].Accepted += told.Accepted\n\t\t\tg.untold[ago].Refused = min("},
	{"a provider that bans is probed by many", "group.go", "case g.bans || ", "case "},
	{"an interval is judged twice", "group.go", " || l.Judged >= c.Interval", ""},
	{"slow replies make a call each", "share.go", "\ts.shares[0].reported = true\n", ""},
	{"with Spread, only the first request counts", "share.go", "lacking = c.queue.units", "lacking += 0"},
	{"a judgement is not told", "share.go", "s.group.judged.Rate > 0 || s", "s"},
	{"what an instance was owed is forgotten", ledgerFile, "float64(c.Owed)/OwedOne", "0*float64(c.Owed)"},
	{"what an instance leases is not taken off its balance", "share.go", "s.owe(-got.Units * ledger.OwedOne)",
		"s.owe(0)"},
	{"what an instance is owed has no bound", ledgerFile, "exact/8+float64(c.Unit))", "1e15)"},
	{"a Date is taken as exact", measureFile, "date + time.Second - sent", "date - sent"},
	{"the delay of a Date is forgotten", measureFile, "bound{date - received, received}",
		"bound{date - sent, received}"},
	{"a measurement never ages", measureFile, "const clockDrift = 100e-6", "const clockDrift = 0.0"},
	{"a measurement survives a jump", "supply.go", "*s.measure = measurement{}", "_ = measurement{}"},
	{"the Date of a cache is believed", measureFile, `if h.Get("Age") != "" {`, `if h.Get("Age") == "-" {`},
	{"a measurement beyond the guard is ignored", measureFile, "case lowest > high:", "case lowest < 0:"},
	{"the remainder stays with the same instances", "part.go", "moved := (window % instances) * rest % instances",
		"moved := int64(0)"},
	{"each part is rounded up", "part.go", "%instances < rest {", "%instances < rest || rest > 0 {"},
	{"a plan holds at once", "part.go", "window >= p.planned[0].from {", "window >= 0 {"},
	{"a plan takes the place of an earlier one", "part.go", "p.planned[i].from >= next.from", "p.planned[i].from >= 0"},
	{"a plan that was read late raises the part at once", "part.go", "units = min(units, partOf(",
		"units = max(units, partOf("},
	{"an instance that is not in the plan has a part", "part.go", "if index >= instances {", "if index < 0 {"},
	{"a wait is not counted", "core.go", "\t\tc.queue.grantedTicket(t, now)\n", ""},
	{"Close leaves tickets behind", "core.go",
		"\t\tout[n] = outcome{waker: c.queue.at(i).waker, err: err}\n",
		"\t\t_ = err\n\t\tout[n] = outcome{waker: WakerFunc(func(Permit, error) {})}\n"},
}

const (
	ledgerFile  = "../internal/limiter/ledger/ledger.go"
	learnFile   = "../internal/limiter/ledger/learn.go"
	measureFile = "clockmeasure.go"
)

// At least one test fails for each mistake that is planted in the code. So the tests of the guarantees can fail.
func TestMistakesAreFound(t *testing.T) {
	every := 10 // all of them take minutes
	if os.Getenv("SLUICE_SOAK") != "" {
		every = 1
	}
	var some []mistake.Mistake
	for i := 0; i < len(broken); i += every {
		b := &broken[i]
		some = append(some, mistake.Mistake{Name: b.mistake, File: b.file, Old: b.old, New: b.new})
	}
	mistake.FindAll(t, some, "../internal/limiter/ledger")
}
