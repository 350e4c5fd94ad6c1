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
//	windows                 0.5 to 7    99.6 to 100  0.2 to 2.3; bursts: 19
//	windows, few requests   22 to 27    100          1.7 to 2.5
//	sliding windows         1.1 to 8    96 to 99     23 to 28
//	buckets                 4.4 to 12   94 to 99     24 to 29
//	bucket, few units       83          95           29
//
// For workloads with bursts, and for those that move, differences of 10 % of the calls, 1 % used and 2 % wrongly denied
// are chance: they come and go between neighbouring values.
type tuning struct {
	// plentyTimes is when there is plenty: this many times the units are left that all processes will probably ask for
	// until the window ends. Each process then leases for all of that time.
	//
	// Measured: 1 saves 2 to 41 % of the calls in windows, but wrongly denies 0.8 % more if one process has most of the
	// requests, and 1.4 % more if the load moves. 3 makes 7 to 36 % more calls if there is plenty, and gains nothing.
	plentyTimes float64

	// ampleDeviations is how far a lease exceeds the requests that are expected while it lasts, in standard deviations
	// of their number. That number is √n if n are expected and they come at random (Poisson). With 3, one lease in 740
	// does not suffice.
	//
	// Measured: 0 makes 37 % more calls for a bucket with plenty and 25 % more for a window; from 1 to 5 it is 14 % at
	// most.
	ampleDeviations float64

	// scarceFor is for how long a process leases at most while there is not plenty.
	//
	// Measured: 1 s makes 9 to 32 % more calls in most windows, and 0.5 s makes 22 to 109 % more. 4 s saves 28 % in a
	// window of a minute, makes up to 14 % more in others, and wrongly denies 2 % more with one hot process, and if the
	// load moves.
	scarceFor time.Duration

	// shareParts divides the share of what is left that a process leases while there is not plenty. With 1 all
	// processes together could lease everything at once, and none could lease more when the load shifts.
	//
	// Measured: it trades calls for denials. 2 saves 5 to 9 % of the calls in windows, but wrongly denies 3.1 % more if
	// the load moves, and 2.8 % more with limits per second and per 10 s; 1.5 denies 5.7 % more there. 3 makes 5 to
	// 24 % more calls and denies at most 0.3 % less. For 2.2 and 2.3 see docs/benchmarks.md.
	shareParts float64

	// leastParts is the capacity divided by the least that a process leases if all requests come to it. It ends the
	// halving of leases when little is left.
	//
	// Measured: 25 saves up to 18 % of the calls in windows and wrongly denies 0.2 to 4.3 % more; 50 denies 1.6 % more
	// if the load moves. 400 makes 3 to 14 % more calls and denies up to 0.9 % less.
	leastParts float64

	// leastFrom is how much of an even share of the requests a process must get to lease a least number of units
	// (leastParts) of a window. A process that gets fewer requests would spend these units late, and other processes
	// would be denied them meanwhile. It is below 1, because the estimate of an even share is off by a fifth.
	//
	// Measured: 0 saves 5 to 9 % of the calls with one hot process, if the load moves, and in bursts, but wrongly
	// denies 0.5 to 0.7 % more in the first two. 1.4 makes 2 to 14 % more calls in windows and denies up to 1 % less.
	// For 1 see docs/benchmarks.md.
	leastFrom float64

	// enoughPart is the part of what a lease would have while there is not plenty. A counter that has more leased and
	// not spent gets no lease with the call for another counter.
	//
	// Measured: it matters only with limits per second and per 10 s. There 0 and 0.25 wrongly deny 0.6 % less, and 1
	// and 2 make 12 and 23 % more calls.
	enoughPart float64

	// leastInSlot is how many units of a token bucket must come free for each process during a slot for the bucket to
	// be leased.
	leastInSlot float64

	// rampLeast is how many times the request's cost must come free for a process before the ramp ends, to be worth a
	// ramp.
	//
	// Measured: for few units, 1 uses 4 % less of a bucket and 0 uses 10 % less, probably because units lie in ramps of
	// processes that get no request. 4 changes nothing, and 8 makes 12 % more calls of a bucket with bursts.
	rampLeast float64

	// rampPart is the part of its share of what comes free that a process leases as a ramp. The share is estimated from
	// what others use, and they would use more if they could.
	//
	// Measured: 0.5 makes 9 to 10 % more calls for buckets. From 0.65 to 1 it is 8 % at most, and nothing else changes.
	rampPart float64

	// rampMore is how many times as much a process leases as a ramp if others have left some of what came free before.
	//
	// Measured: 1 makes 8 to 11 % more calls for buckets; 3 saves 5 % if the load moves. Nothing else changes.
	rampMore float64

	// rampPlenty is when others have left some: the store has this many times what comes free until the ramp ends.
	//
	// Measured: 1.5 makes 3 to 6 % more calls for buckets. Nothing else changes.
	rampPlenty float64

	// denyFor is how long the first denial in a row lasts at most. Each further one lasts twice as long, up
	// to denyForMost. The store is asked again before the window ends, because others may give
	// units back.
	//
	// Measured: 2 s and 1 s make 7 to 12 % more calls in windows, 0.5 s makes 6 to 20 % more, and nothing is gained.
	// With limits per second and per 10 s, 1 s wrongly denies 0.6 % more and 0.5 s denies 2.2 % more. 8 s changes
	// nothing.
	denyFor time.Duration

	// denyForMost is how long a denial lasts at most.
	//
	// Measured: 1 s makes 27 % more calls in a window of a minute and 6 to 20 % more in others, 2.5 s makes 6 % more in
	// that of a minute; 10 s changes nothing.
	denyForMost time.Duration

	// keepFor is for how long a process keeps units that it expects to spend while there is not plenty. It gives back
	// the rest. It keeps units of a window for less time if the store will run out of units sooner.
	//
	// Measured: 0.5 s makes 18 to 154 % more calls in windows and uses 1.9 % less of a sliding window; 1 s makes 6 to
	// 68 % more calls, 1.5 s up to 20 % and 2 s up to 9 %. 4 s saves nothing, and wrongly denies 2.1 % more if the load
	// moves.
	keepFor time.Duration

	// returnParts is the capacity divided by the least that is given back.
	//
	// Measured: 10 saves up to 53 % of the calls, but wrongly denies 11 % more if the load moves, and 4.7 % more with
	// one hot process. If the load moves, 25 wrongly denies 6 % more and 50 denies 2.4 % more; 50 saves up to 12 % of
	// the calls. 100 makes up to 7 % more calls and gains nothing.
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

	leastInSlot: 18,

	rampLeast:  2,
	rampPart:   0.8,
	rampMore:   1.5,
	rampPlenty: 1.1,

	denyFor:     4 * time.Second,
	denyForMost: 5 * time.Second,

	keepFor:     3 * time.Second,
	returnParts: 80,
}
