package lease

import "time"

// tuning is the constants of the layer that no argument fixes, only measurement. Each comment says what the constant
// does, and what the measurement showed when it was changed and all others kept their values. To repeat it:
//
//	go test -v -timeout 30m -run '^TestTuning$' ./internal/limiter/lease -tuning .
//
// It plays 22 workloads for 3 times 90 s of virtual time: fixed and sliding windows and token buckets, whose limits are
// ample or admit three quarters of what is asked for; asked evenly, mostly at one process, at another one every 7 s
// (moving), or in bursts. It prints three numbers. Calls are calls of the store for 100 decisions. Used is what was
// admitted, in percent of what one counter without leases would have admitted. Wrongly denied is what would have fitted
// beside all that had been admitted, in percent of the units asked for: one unit left over counts every denial until it
// is spent. With the values in use they are:
//
//	                        calls       used         wrongly denied
//	ample limits            0.3 to 2.5  100          0
//	windows                 0.5 to 6    99.9 to 100  0.1 to 3; moving: 8; bursts: 18
//	windows, few requests   22 to 24    100          2 to 3
//	sliding windows         1.1 to 8    95 to 99     23 to 28
//	buckets                 3.5 to 11   92 to 99     24 to 31
//	bucket, few units       83          95           29
//
// For workloads with bursts, and for those that move, differences of 10 % of the calls, 1 % used and 2 % wrongly denied
// are chance: they come and go between neighbouring values.
type tuning struct {
	// plentyTimes is when there is plenty: this many times the units are left that all processes will probably ask for
	// until the window ends. Each process then leases for all of that time.
	//
	// Measured: 1 saves 4 to 34 % of the calls in windows, but uses 0.3 % less if the limit is just what is asked for,
	// and wrongly denies 1.8 % more if one process has most of the requests. 3 makes 12 to 41 % more calls if there is
	// plenty, and gains nothing.
	plentyTimes float64

	// ampleDeviations is how far a lease exceeds the requests that are expected while it lasts, in standard deviations
	// of their number. That number is √n if n are expected and they come at random (Poisson). With 3, one lease in 740
	// does not suffice.
	//
	// Measured: 0 makes 37 % more calls for a bucket with plenty and 20 % more for a window; from 1 to 5 it is 10 % at
	// most.
	ampleDeviations float64

	// scarceFor is for how long a process leases at most while there is not plenty.
	//
	// Measured: 1 s makes 12 to 46 % more calls in most windows, and 0.5 s makes 36 to 107 % more. 4 s saves 16 % in a
	// window of a minute, makes up to 15 % more in others, and wrongly denies 2.5 % more with one hot process and 1.2 %
	// more with ten processes.
	scarceFor time.Duration

	// shareParts divides the share of what is left that a process leases while there is not plenty. With 1 all
	// processes together could lease everything at once, and none could lease more when the load shifts.
	//
	// Measured: it trades calls for denials. 1 saves 17 to 26 % of the calls in windows and wrongly denies 0.2 to 2.5 %
	// more; 3 makes 9 to 15 % more calls and denies less only if the load moves (3.5 %) or units are few (1.1 %). Two
	// limits, per second and per 10 s, decide it: there 1.5 wrongly denies 11 % more and 2 denies 8 % more, but 3 only
	// 1 % less, with 33 % more calls.
	shareParts float64

	// leastParts is the capacity divided by the least that a process leases if all requests come to it. It ends the
	// halving of leases when little is left.
	//
	// Measured: 25 saves up to 17 % of the calls in windows and wrongly denies 0.2 to 1.6 % more; 400 makes 5 to 13 %
	// more and denies up to 1.3 % less.
	leastParts float64

	// leastFrom TODO
	leastFrom float64

	// enoughPart is the part of what a lease would have while there is not plenty. A counter that has more leased and
	// not spent gets no lease with the call for another counter.
	//
	// Measured: from 0 to 2 calls change by 6 %. With limits per second and per 10 s, wrongly denied are 1.5 % at 0,
	// 2.7 % at 0.25, 3.2 % at 0.5 and 5.8 % at 2.
	enoughPart float64

	// rampLeast is how many times the request's cost must come free for a process before the ramp ends, to be worth a
	// ramp.
	//
	// Measured: for few units, 1 uses 4 % less of a bucket and 0 uses 10 % less, probably because units lie in ramps of
	// processes that get no request. 4 changes nothing, and 8 makes 12 % more calls with bursts.
	rampLeast float64

	// rampPart is the part of its share of what comes free that a process leases as a ramp. The share is estimated from
	// what others use, and they would use more if they could.
	//
	// Measured: 0.5 makes 7 to 17 % more calls for buckets. From 0.65 to 1 it is 6 % at most, and nothing else changes.
	rampPart float64

	// rampMore is how many times as much a process leases as a ramp if others have left some of what came free before.
	//
	// Measured: 1 makes 15 % more calls for buckets; 2 and 3 save 5 to 8 % if the load moves. Nothing else changes.
	rampMore float64

	// rampPlenty is when others have left some: the store has this many times what comes free until the ramp ends.
	//
	// Measured: 1.5 makes 10 to 15 % more calls for buckets; from 0.9 to 1.25 it is 9 % at most. Nothing else changes.
	rampPlenty float64

	// denyFor is how long the first denial in a row lasts at most. Each further one lasts twice as long, up
	// to denyForMost. The store is asked again before the window ends, because others may give
	// units back.
	//
	// Measured: 0.5 s makes 7 to 9 % more calls in windows, 4 s saves 8 %, and as much is used with either. With limits
	// per second and per 10 s, 1 s wrongly denies 1.3 % more and 0.5 s denies 4.4 % more.
	denyFor time.Duration

	// denyForMost is how long a denial lasts at most.
	//
	// Measured: 1 s makes 28 % more calls in a window of a minute and 6 to 9 % more in others, 2.5 s makes 7 % more in
	// that of a minute; 10 s changes nothing.
	denyForMost time.Duration

	// keepFor is for how long a process keeps units that it expects to spend while there is not plenty. It gives back
	// the rest.
	//
	// Measured: 0.5 s makes 14 to 127 % more calls in windows and uses 1.5 % less of a sliding window; 1 s makes up to
	// 29 % more calls. 3 s saves up to 17 % but wrongly denies 1.7 % more if the load moves.
	keepFor time.Duration

	// returnParts is the capacity divided by the least that is given back.
	//
	// Measured: 10 saves up to 42 % of the calls, but wrongly denies 7.3 % more if the load moves, of which 0.8 % less
	// is used, and 2 % more with one hot process or ten processes; 25 wrongly denies 1.6 % more with one hot process.
	// 100 makes up to 11 % more calls and gains nothing.
	returnParts int64
}

var defaultTuning = tuning{
	plentyTimes:     2,
	ampleDeviations: 3,
	scarceFor:       2 * time.Second,
	shareParts:      2.4,
	leastParts:      100,
	leastFrom:       0.7,
	enoughPart:      0.5,

	rampLeast:  2,
	rampPart:   0.8,
	rampMore:   1.5,
	rampPlenty: 1.1,

	denyFor:     4 * time.Second,
	denyForMost: 5 * time.Second,

	keepFor:     3 * time.Second,
	returnParts: 80,
}
