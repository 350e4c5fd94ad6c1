package ledger

import "fmt"

// Replies counts what the provider replied to requests, in units of their costs. Each is 0..MaxUnits in a claim.
type Replies struct{ Accepted, Refused int64 }

// Learned is what the instances have found out about the limit of the provider. The zero Learned means that nothing was
// learned. The ledger only stores it and applies Rate. Package pacer has the rule that changes it.
type Learned struct {
	Rate   int64 // the learned limit, in 1/LearnedOne of a unit per window; at least LearnedOne, 0: none
	Judged int64 // number of the interval in which an instance judged last
	From   int64 // number of the first interval in which all requests were granted by Rate
	Target int64 // what the rate climbs to, in the scale of Rate; 0: nothing was refused yet
	Probe  int64 // latest growth, in 1/LearnedOne of the rate; 0: no probe since the rate fell
	Held   int64 // number of intervals at the target
}

// LearnedOne is a unit, in the scale of Learned.Rate.
const LearnedOne = 1 << 10

// intervals is the number of intervals whose replies an entry remembers: the present one, the two before it, and one
// for instances whose clocks are ahead.
const intervals = 4

// Sum counts the replies to requests of one interval that instances have told. A Sum without replies is unused.
type Sum struct {
	Interval int64 // number of the interval
	Replies        // 0..maxWindow each
}

func (l *Learned) check() error {
	const most = MaxUnits * LearnedOne
	if *l == (Learned{}) {
		return nil
	}
	if l.Rate < LearnedOne || l.Rate > most || l.Target < 0 || l.Target > most || l.Probe < 0 || l.Probe > LearnedOne ||
		l.Held < 0 || l.Held > maxWindow || max(l.Judged, l.From, -l.Judged, -l.From) > maxWindow {
		return fmt.Errorf("%w: learned %+v", ErrInvalid, *l)
	}
	return nil
}

// sum returns the sum of an interval, and makes a new one if the entry has none. It returns nil if the interval is too
// old to be remembered.
func (e *Entry) sum(interval int64) *Sum {
	s := &e.Sums[uint64(interval)%intervals]
	switch {
	case s.Interval == interval:
	case s.Interval > interval && s.Replies != Replies{}:
		return nil
	default:
		*s = Sum{Interval: interval}
	}
	return s
}

// learn adds what a claim tells of the provider.
func (e *Entry) learn(c *Claim) {
	e.Pause = max(e.Pause, c.Pause)
	if c.Stated > 0 {
		e.Stated = c.Stated
	}
	for i, told := range c.Replies {
		if told == (Replies{}) {
			continue
		}
		if s := e.sum(c.Interval - int64(i)); s != nil {
			s.Accepted = min(s.Accepted+told.Accepted, maxWindow)
			s.Refused = min(s.Refused+told.Refused, maxWindow)
		}
	}
	l := &e.Learned
	if c.Learned.Rate > 0 && l.Rate > 0 && c.Expect == l.Judged {
		*l = c.Learned
	}
	if c.Learn > 0 && l.Rate == 0 {
		*l = Learned{Rate: c.Learn * LearnedOne, Judged: max(l.Judged, c.Interval), From: c.Interval + 1}
	}
}

// forget makes the learning begin anew. A judgement that is on its way then expects another number.
func (e *Entry) forget() {
	e.Stated = 0
	if e.Learned.Rate > 0 {
		e.Learned = Learned{Judged: e.Learned.Judged + 1}
	}
}

// Most returns the number of units of a window that may be leased, given its limit.
func (e *Entry) Most(window, limit int64) int64 {
	if e.Learned.Rate > 0 {
		limit = min(limit, e.Learned.Rate/LearnedOne)
	}
	if e.Stated > 0 {
		limit = min(limit, UnitsOf(e.Stated, window))
	}
	return limit
}
