package simulate

import "slices"

// maxPoints bounds the timeline: a day in points of a minute. For longer logs, the points are wider.
const maxPoints = 1440

// timeline counts outcomes by time: in points of a minute at first, and in wider points when there are too many. Only
// points in which something happened exist.
type timeline struct {
	width  int64 // minutes
	points []point
}

type point struct {
	slot                           int64 // start of the point, as a number of widths since 1970
	allowed, denied, shadow, other int64
	limits                         []limitCount
}

// limitCount counts how often a limit denied, or would have denied as a shadow.
type limitCount struct {
	limit int32
	n     int64
}

func newTimeline() timeline { return timeline{width: 1} }

// at returns the point of a time. The time must not be before an earlier call's.
func (t *timeline) at(now int64) *point {
	minute := now / minuteMicros
	slot := minute / t.width
	if n := len(t.points); n > 0 && t.points[n-1].slot == slot {
		return &t.points[n-1]
	}
	for len(t.points) >= maxPoints {
		t.widen()
		slot = minute / t.width
	}
	if n := len(t.points); n > 0 && t.points[n-1].slot == slot {
		return &t.points[n-1]
	}
	t.points = append(t.points, point{slot: slot})
	return &t.points[len(t.points)-1]
}

func (t *timeline) add(now int64, what outcome, shadowed bool) {
	p := t.at(now)
	switch what {
	case allowed:
		p.allowed++
	case denied:
		p.denied++
	default:
		p.other++
	}
	if shadowed {
		p.shadow++
	}
}

// deny counts a denial of a limit, including that of a shadow limit.
func (t *timeline) deny(limit int32, now int64) { t.at(now).count(limit, 1) }

func (p *point) count(limit int32, n int64) {
	for i := range p.limits {
		if p.limits[i].limit == limit {
			p.limits[i].n += n
			return
		}
	}
	p.limits = append(p.limits, limitCount{limit, n})
}

// widen makes the points wider. The new width is a multiple of the old one, so that each new point consists of whole
// old points.
func (t *timeline) widen() {
	next := t.width * 2
	if i := slices.Index(widths, t.width); i >= 0 && i+1 < len(widths) {
		next = widths[i+1]
	}
	factor := next / t.width
	t.width = next
	kept := t.points[:0]
	for i := range t.points {
		p := t.points[i]
		p.slot /= factor
		n := len(kept)
		if n == 0 || kept[n-1].slot != p.slot {
			kept = append(kept, p)
			continue
		}
		last := &kept[n-1]
		last.allowed += p.allowed
		last.denied += p.denied
		last.shadow += p.shadow
		last.other += p.other
		for _, c := range p.limits {
			last.count(c.limit, c.n)
		}
	}
	clear(t.points[len(kept):])
	t.points = kept
}

// widths are the possible widths in minutes up to a day; above that, each width is twice the one before.
var widths = []int64{1, 5, 10, 30, 60, 180, 360, 720, 1440}
