package dynamodb

import "math/big"

// heldBucket charges a token bucket of which units are leased, or are to be: what is leased is held, and the bucket does not
// refill into its place until its slot ends. Of such a bucket q says when what it has and what it holds, together, were zero:
// the sum runs over as a bucket does that has no leases, and a lease does not change it. So writers that lease do not
// disturb each other.
type heldBucket struct {
	*bucketCharge
	c counter

	at     int64    // the time decided at: a clock that is behind decides at the counter's own
	hold   bool     // the counter holds something, or did
	inSlot bool     // and its slot has not ended
	back   int64    // units that are given back, of those that are held
	over   *big.Int // what e must be raised by, since the bucket ran over before its slot ended
	sum    *big.Int // q, or, in a new slot, what it begins with
	raise  *big.Int // what both are raised by, since the sum has run over
	latest int64    // the sum does not run over until then
	fixed  bool     // only that one sum will do: it is raised to target
	target *big.Int
}

func (g *bucketCharge) heldBucket(c counter) {
	if g.old == nil {
		c.require(c.absent())
		c.replace(g.fresh())
		return
	}
	b := &heldBucket{bucketCharge: g, c: c, at: max(g.now, g.pre.AsOf), hold: g.old["z"] != nil}
	b.inSlot = b.hold && g.old["z"].Cmp(big.NewInt(b.at)) > 0
	if !b.usual() {
		g.exact(c)
		return
	}
	b.weigh()
	b.require()
	b.set()
}

// usual reports whether the charge is none of the rare ones: units owed, a give-back that meets a bound, more held than the
// burst is by now.
func (b *heldBucket) usual() bool {
	held := b.pre.Leased.Units
	if held > b.params.Capacity || b.inSlot && b.leases() && big.NewInt(b.lease.At).Cmp(b.old["z"]) != 0 {
		return false
	}
	if b.adjust() < 0 && b.inSlot && b.old["z"].Cmp(big.NewInt(b.ask.CorrectionAt)) == 0 {
		b.back = min(-b.adjust(), held)
		return b.back == -b.adjust()
	}
	return b.adjust() <= 0
}

// weigh finds what the sum is, and whether it has run over or soon will.
func (b *heldBucket) weigh() {
	p := &b.params
	b.over, b.raise = new(big.Int), new(big.Int)
	full := scaled(b.at, p.Num, -p.Full) // a sum that is full now
	if b.inSlot {
		b.sum = b.old["q"]
	} else {
		if b.hold {
			b.over = larger(b.over, scaled(b.old["z"].Int64(), p.Num, -p.Full), b.old["q"])
		}
		b.sum = new(big.Int).Add(b.old["e"], b.over)
	}
	look := b.lookahead()
	b.latest = b.at + look
	left := new(big.Int).Sub(b.sum, full) // until it runs over, in 1/num µs
	if b.contended && p.Capacity >= slackLeast && left.Cmp(scaled(drawn(look), p.Num, 0)) < 0 {
		// One writer, drawn by lot, makes room for what refills meanwhile, see nearlyFull.
		if nearly := new(big.Int).Add(full, big.NewInt(p.Full/slackParts)); nearly.Cmp(b.sum) > 0 && b.hasRoom(nearly) {
			b.fixed, b.target = true, nearly
		}
	}
	switch {
	case b.fixed:
	case left.Sign() < 0:
		b.fixed, b.target, b.latest = true, full, b.at
	case left.Cmp(scaled(look, p.Num, 0)) < 0:
		b.latest = b.at
	}
	if b.fixed {
		b.raise.Sub(b.target, b.sum)
	}
	b.doubtful = b.fixed || !b.inSlot
}

// larger is a − b where that is above zero, else zero.
func larger(zero, a, b *big.Int) *big.Int {
	if a.Cmp(b) <= 0 {
		return zero
	}
	return new(big.Int).Sub(a, b)
}

// units is that many in e and q.
func (b *heldBucket) units(n int64) *big.Int {
	return new(big.Int).Mul(big.NewInt(n), big.NewInt(b.params.Den))
}

// most is the largest e, once it is raised and what is given back is off it, for which what is taken fits where the sum is
// that one; nil where nothing is taken.
func (b *heldBucket) most(sum *big.Int) *big.Int {
	if b.taken() == 0 {
		return nil
	}
	var most *big.Int
	for _, claim := range b.claims() {
		free := scaled(max(claim.at, b.at), b.params.Num, 0)
		if free.Sub(free, b.units(claim.units)); most == nil || free.Cmp(most) < 0 {
			most = free
		}
	}
	if !b.ramps() {
		return most
	}
	bounds := []*big.Int{scaled(b.at, b.params.Num, 0)} // the level stays above -burst
	if b.inSlot {
		bounds = append(bounds, sum) // and what is held within the burst
	}
	for _, bound := range bounds {
		bound = new(big.Int).Add(bound, big.NewInt(b.params.Full))
		if bound.Sub(bound, b.units(b.taken())); most == nil || bound.Cmp(most) < 0 {
			most = bound
		}
	}
	return most
}

// hasRoom reports whether what is taken fits a bucket whose sum is raised to that one.
func (b *heldBucket) hasRoom(sum *big.Int) bool {
	most := b.most(sum)
	if most == nil {
		return true
	}
	e := new(big.Int).Add(b.old["e"], b.over)
	e.Sub(e, b.units(b.back))
	return e.Add(e, new(big.Int).Sub(sum, b.sum)).Cmp(most) <= 0
}

// require adds the condition.
func (b *heldBucket) require() {
	c, p := b.c, &b.params
	c.mustBe("r", b.old["r"])
	c.require(c.compare("t", "<=", big.NewInt(b.latest)))
	if b.pre.AsOf > b.now {
		c.require(c.compare("t", ">=", big.NewInt(b.pre.AsOf)))
	}
	if b.hold {
		c.mustBe("z", b.old["z"])
	} else {
		c.require(c.without("z"))
	}
	switch {
	case b.hold && (!b.inSlot || b.fixed):
		c.mustBe("q", b.old["q"])
	case b.inSlot:
		least := scaled(b.latest, p.Num, -p.Full)
		if b.ramps() && b.old["q"].Cmp(least) > 0 { // what may be held goes by the sum
			least = b.old["q"]
		}
		c.require(c.compare("q", ">=", least))
	}
	if !b.inSlot && b.fixed { // whatever it was below the target, it is raised to that
		c.require(c.compare("e", "<=", new(big.Int).Sub(b.target, b.over)))
		return
	}
	if !b.inSlot {
		least := scaled(b.latest, p.Num, -p.Full)
		c.require(c.compare("e", ">=", least.Sub(least, b.over)))
	}
	sum := new(big.Int).Add(b.sum, b.raise)
	if most := b.most(sum); most != nil {
		most = new(big.Int).Add(most, b.units(b.back))
		most.Sub(most.Sub(most, b.over), b.raise)
		c.require(c.compare("e", "<=", most))
		// Others may have taken what refilled since.
		refilled := scaled(b.at-b.old["t"].Int64(), p.Num, b.taken()*p.Den)
		b.doubtful = b.doubtful || refilled.Add(refilled, b.old["e"]).Cmp(most) > 0
		b.tight = new(big.Int).Add(b.old["e"], b.units(b.taken())).Cmp(most) > 0
	}
	if b.back > 0 { // that much is held: e is that far ahead of the sum, wherever between the two others have moved them
		sum := b.old["q"]
		if !b.fixed {
			spare := new(big.Int).Sub(b.old["e"], b.old["q"])
			spare.Sub(spare, b.units(b.back))
			sum = new(big.Int).Add(sum, spare.Rsh(spare, 1))
			c.require(c.compare("q", "<=", sum))
		}
		c.require(c.compare("e", ">=", new(big.Int).Add(sum, b.units(b.back))))
	}
}

// set adds the assignments.
func (b *heldBucket) set() {
	c := b.c
	moved := new(big.Int).Add(b.over, b.raise)
	change := b.units(b.taken() - b.back)
	spent := new(big.Int) // what is not held is off the sum
	if !b.leases() {
		spent = b.units(b.taken())
	}
	if !b.inSlot && b.fixed {
		c.set("e", new(big.Int).Add(b.target, change))
	} else {
		c.add("e", change.Add(change, moved))
	}
	switch {
	case b.inSlot && b.fixed:
		c.set("q", spent.Add(spent, b.target))
	case b.inSlot && spent.Sign() != 0:
		c.add("q", spent)
	case b.inSlot:
	case b.leases() && b.fixed:
		c.set("q", b.target)
		c.set("z", big.NewInt(b.lease.At))
	case b.leases():
		c.copy("q", "e", moved)
		c.set("z", big.NewInt(b.lease.At))
	case b.hold:
		c.drop("q")
		c.drop("z")
	}
	if b.at > b.now {
		return
	}
	if !b.contended || b.now-b.old["t"].Int64() > drawn(stampSteps*b.lookahead()) {
		c.set("t", big.NewInt(b.now))
	}
}
