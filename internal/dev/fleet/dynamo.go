package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/fleet/dynamotable"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
)

const (
	// A partition of a table takes 1,000 write units or 3,000 read units per second, or a combination of both: see
	// "Best practices for designing and using partition keys effectively in DynamoDB" in AWS's developer guide.
	partitionWrites = 1_000
	readsPerWrite   = 3 // read units that count as much as one write unit

	// A new on-demand table takes 4,000 write units per second, as much as 4 partitions: see "Understanding DynamoDB
	// warm throughput in different scenarios" in AWS's developer guide.
	newTablePartitions = 4

	// totalItemCopies bounds how many copies of items the stores of all processes keep together, of about 1 KB each:
	// 500 MB. Each process keeps dynamodb.DefaultMaxItems at most, as in production.
	totalItemCopies = 500_000
)

var errNoTableReply = fmt.Errorf("simulated DynamoDB: no reply in time: %w", context.DeadlineExceeded)

// unitCount counts the write units of a partition or of a tenant.
type unitCount struct {
	total    int64 // units of the measured time
	peak     int64 // the most units in one second of the measured time
	inSecond int64 // units of the present second
	second   int64 // number of the present second
}

// add adds the units of a call that was carried out at the given time, ns.
func (u *unitCount) add(now, units int64) {
	if second := now / 1e9; second != u.second {
		u.second, u.inSecond = second, 0
	}
	u.inSecond += units
	u.total += units
	u.peak = max(u.peak, u.inSecond)
}

// partition holds what a shard has in addition if the store is DynamoDB. The shard is then a partition of the table,
// which accepts a limited number of units per second.
type partition struct {
	table       *dynamotable.Table // nil if the shard is a node of Redis
	writes      unitCount
	tenantUnits int64 // those of writes that are about counters of tenants

	// Counts of the measured time.
	reads   int64 // read units
	failed  int64 // writes whose condition did not hold
	refused int64 // calls that were refused, because the partition had taken its units of the second
}

func (p *partition) beginMeasuring() {
	*p = partition{table: p.table, writes: unitCount{inSecond: p.writes.inSecond, second: p.writes.second}}
}

// refuses reports whether the partition refuses a call because its units of the present second are used up.
func (s *shard) refuses(now int64) bool {
	most := int64(partitionWrites)
	if s.throttled > 0 {
		most = min(most, s.throttled)
	}
	if second := now / 1e9; second != s.second {
		s.second, s.taken = second, 0
	}
	return s.taken >= most*readsPerWrite
}

// tableStore returns the store of a process on the table of its cell. It is the real DynamoDB store with a simulated
// client.
func (r *run) tableStore(p *process) (resilience.NamedStore, error) {
	s, err := dynamodb.New(dynamodb.Config{
		Client: dynamotable.Client{Send: p.send}, Table: "counters", Runtime: p.runtime,
		Timeout:  r.costs.DynamoDBDeadline,
		MaxItems: min(max(totalItemCopies/r.scenario.mostProcesses(), 1), dynamodb.DefaultMaxItems),
	})
	if err != nil {
		return resilience.NamedStore{}, err
	}
	return resilience.NamedStore{Name: "dynamodb", Store: tablePort{s}}, nil
}

// checkTable returns an error for the first limit that the store on a table cannot count.
func checkTable(loads []load) error {
	s, err := dynamodb.New(dynamodb.Config{Client: dynamotable.Client{}, Table: "counters"})
	if err != nil {
		return err
	}
	for _, l := range loads {
		for _, c := range l.charges {
			if err := s.Accepts(c.Limit); err != nil {
				return fmt.Errorf("tenant %s: %w", l.name, err)
			}
		}
	}
	return nil
}

// tablePort is the store of a process on a table. It puts the owner of a request into the context, so that send knows
// whose counters the calls to the table are about.
type tablePort struct{ *dynamodb.Store }

var _ limit.Store = tablePort{}

// ownerKey is the key of a context's value, a limit.Owner, that says whose counters a call is about.
type ownerKey struct{}

// Decide implements [limit.Store].
func (p tablePort) Decide(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return p.Store.Decide(context.WithValue(ctx, ownerKey{}, req.Owner), req, now, d)
}

// Peek implements [limit.Store].
func (p tablePort) Peek(ctx context.Context, req *limit.Request, now time.Time, d *limit.Decision) error {
	return p.Store.Peek(context.WithValue(ctx, ownerKey{}, req.Owner), req, now, d)
}

// send makes a call to the table of the process's cell, and waits for the reply. It is the Send of a
// dynamotable.Client.
func (p *process) send(
	ctx context.Context, do func(*dynamotable.Table) (dynamotable.Cost, error),
) (replied time.Time, err error) {
	c := &tableCall{run: p.run, do: do}
	c.wait(ctx, p)
	return c.replied, c.err
}

// tableCall is one call of the simulated table.
type tableCall struct {
	run      *run
	worker   *worker
	shard    *shard
	tenant   *tenant // whose counters the call is about; nil for those of the processes themselves
	do       func(*dynamotable.Table) (dynamotable.Cost, error)
	oneWay   int64     // the time for one way of the round trip, ns
	deadline int64     // when the caller stops waiting, ns
	err      error     // the result of the call
	replied  time.Time // when the table replied; the zero Time if the caller got no reply
}

// wait sends the call, and waits for its reply or its deadline.
func (c *tableCall) wait(ctx context.Context, p *process) {
	r := c.run
	if c.err = ctx.Err(); c.err != nil {
		return
	}
	owner, _ := ctx.Value(ownerKey{}).(limit.Owner)
	c.tenant = r.tenantOf(owner)
	c.worker, c.shard = r.current, p.cell.shardOf(owner.Name)
	c.oneWay = int64(float64(r.costs.DynamoDBRoundTrip.Nanoseconds()/2) * c.shard.slower)
	c.deadline = r.now + r.costs.DynamoDBDeadline.Nanoseconds()
	if at, ok := ctx.Deadline(); ok {
		c.deadline = r.now + at.Sub(p.time()).Nanoseconds()
	}
	r.after(time.Duration(c.oneWay), c.arrive)
	if r.now+c.oneWay > c.deadline {
		c.giveUp()
	}
	r.park()
}

// giveUp lets the caller continue at the deadline without a reply.
func (c *tableCall) giveUp() {
	c.err = errNoTableReply
	c.run.queue.push(event{at: c.deadline, resume: c.worker})
}

// arrive carries out a call that has come to its partition, and adds the event of its reply. If the reply comes after
// the deadline, the caller gets no reply, but what the call has written stays written.
func (c *tableCall) arrive() {
	r, s := c.run, c.shard
	late := c.err != nil // the caller has given up already
	s.count(c.tenant)
	if s.away {
		s.unserved++
		if !late {
			c.giveUp()
		}
		return
	}
	var err error
	if s.refuses(r.now) {
		s.refused++
		s.unserved++
		err = dynamotable.Throttled()
	} else {
		err = c.carryOut()
	}
	if late {
		return
	}
	if r.now+c.oneWay > c.deadline {
		c.giveUp()
		return
	}
	c.err, c.replied = err, r.timeAt(r.now)
	r.queue.push(event{at: r.now + c.oneWay, resume: c.worker})
}

// carryOut lets the table carry out the call, and counts its units.
func (c *tableCall) carryOut() error {
	r, s := c.run, c.shard
	cost, err := c.do(s.table)
	taken := float64(cost.Writes*readsPerWrite + cost.Reads)
	if c.tenant != nil {
		taken *= r.sampleWeight
	}
	s.taken += int64(taken)
	s.writes.add(r.now, cost.Writes)
	s.reads += cost.Reads
	if err != nil {
		s.failed++
	}
	if c.tenant != nil {
		s.tenantUnits += cost.Writes
		c.tenant.units.add(r.now, cost.Writes)
	}
	return err
}

// TableUse holds the use of the tables of DynamoDB in the measured time, of all cells together.
type TableUse struct {
	// Write and read units per second. If only a sample of the tenants is decided, both are projected to all tenants.
	WriteUnits float64 `json:"writeUnitsPerSecond"`
	ReadUnits  float64 `json:"readUnitsPerSecond"`

	FailedConditions int64 `json:"failedConditions"`   // writes whose condition did not hold; they cost units, too
	Refused          int64 `json:"refused"`            // calls that partitions above their rate refused
	PartitionsOver   int   `json:"partitionsOverRate"` // partitions that refused calls
}

// tableUse adds up the use of partitions.
func (r *run) tableUse(shards []*shard, seconds float64) *TableUse {
	use := new(TableUse)
	for _, s := range shards {
		use.WriteUnits += (float64(s.writes.total) + float64(s.tenantUnits)*(r.sampleWeight-1)) / seconds
		use.ReadUnits += float64(s.reads) / seconds * r.sampleWeight
		use.FailedConditions += s.failed
		use.Refused += s.refused
		if s.refused > 0 {
			use.PartitionsOver++
		}
	}
	return use
}
