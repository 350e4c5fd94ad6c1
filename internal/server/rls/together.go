package rls

import "sync"

// maxTogether bounds how many calls of the store one request makes at the same time. Envoy sends a few descriptors.
const maxTogether = 64

// canChargeTogether reports whether the outcome of chargeTogether is that of chargeItems: if no two items share
// counters, the order of their charges makes no difference. Two plans of one request may be those of one tenant.
func (c *call) canChargeTogether() bool {
	if !c.service.config.Together || len(c.items) < 2 || len(c.items) > maxTogether {
		return false
	}
	for i := range c.items {
		for j := range i {
			a, b := &c.items[i], &c.items[j]
			if a.hasCounters() && b.hasCounters() && a.owner == b.owner {
				return false
			}
		}
	}
	return true
}

// recentDenial is how long after a denial an item is asked before the others, although nobody knows until when it
// denies, in µs.
const recentDenial = 1_000_000

// chargeTogether does what chargeItems does, with the calls of all items at the same time: a request about several
// descriptors then takes as long as one about a single descriptor, however far away the store is. An item that is known
// to deny is asked before the others, which are then spared if it denies again.
func (c *call) chargeTogether() error {
	global := c.service.config.ShadowMode
	if err := c.checkNegativeHits(); err != nil { // before anything is given back
		return err
	}
	likely := c.likelyDenial()
	if likely != nil && !global {
		if err := c.askTogether(func(it *item) bool { return it == likely || c.isUnconditional(it) }); err != nil {
			return err
		}
		if c.denied {
			c.refund()
			return nil
		}
	}
	if err := c.askTogether(func(*item) bool { return true }); err != nil {
		return err
	}
	byQuotas := (!c.denied || global) && c.quotasDeny()
	c.denied = c.denied || byQuotas
	if c.denied && !global {
		c.refund()
		c.forgetSpared(byQuotas)
	}
	return nil
}

// forgetSpared makes the items that chargeItems would not have charged look as if they had not been asked. The request
// is denied, by the items with quota_mode if byQuotas is set.
func (c *call) forgetSpared(byQuotas bool) {
	for i := range c.items {
		it := &c.items[i]
		if it.hasCounters() && !c.isUnconditional(it) && (it.rule.ShadowMode || it.quota && !byQuotas) {
			it.state, it.countersKnown = undecided, false
		}
	}
}

// likelyDenial returns the item that can deny alone and has denied as many hits most recently, if it denies still or
// did so a moment ago. It returns nil if there is none.
func (c *call) likelyDenial() (likely *item) {
	now, latest := c.now.UnixMicro(), int64(0)
	for i := range c.items {
		it := &c.items[i]
		if !it.deniesAlone() || c.isUnconditional(it) {
			continue
		}
		last := c.service.denials.last(&it.owner)
		if last > latest && (last > now-recentDenial || c.service.denials.until(&it.owner, it.hits) > now) {
			likely, latest = it, last
		}
	}
	return likely
}

// askTogether charges the undecided items that choose accepts, and sets c.denied if one of them denies the request. If
// a call fails, the others are made nevertheless, and the error is that of the first item.
func (c *call) askTogether(choose func(*item) bool) error {
	asked := make([]*item, 0, len(c.items))
	for i := range c.items {
		if it := &c.items[i]; it.hasCounters() && it.state == undecided && choose(it) {
			asked = append(asked, it)
		}
	}
	errs := make([]error, len(asked))
	together(len(asked), func(i int) {
		if c.isUnconditional(asked[i]) {
			errs[i] = c.chargeUnconditional(asked[i])
		} else {
			errs[i] = c.charge(asked[i])
		}
	})
	for i, it := range asked {
		switch {
		case errs[i] != nil:
			return errs[i]
		case !it.deniesAlone():
		case it.state == over:
			c.denied = true
			c.noteDenial(it)
		case it.state == charged:
			c.service.denials.forgetWait(&it.owner, it.hits)
		}
	}
	return nil
}

// together calls f with each number below n at the same time, and returns when all calls have. A panic of one of them
// becomes a panic of the caller, who recovers from it.
func together(n int, f func(int)) {
	if n == 0 {
		return
	}
	var group sync.WaitGroup
	var once sync.Once
	var panicked any
	for i := 1; i < n; i++ {
		group.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					once.Do(func() { panicked = p })
				}
			}()
			f(i)
		})
	}
	func() {
		defer group.Wait() // also if f panics: the others use memory of the caller
		f(0)
	}()
	if panicked != nil {
		panic(panicked)
	}
}
