package redis_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// longDeadline is a time limit that no decision of these tests reaches.
const longDeadline = 20 * time.Second

// ownerNumber returns the owner with the number i.
func ownerNumber(i int) limit.Owner {
	return limit.Owner{Kind: limit.Tenant, Name: "tenant-" + strconv.Itoa(i)}
}

// decideInOneBatch makes one decision for each of n owners, all in one batch. Owner i spends i+1 units. The function
// returns how many units each owner has left, or −1 after an error, and the errors.
func decideInOneBatch(t *testing.T, s *redis.Store, n int) (left []int64, errs []error) {
	t.Helper()
	left, errs = make([]int64, n), make([]error, n)
	s.Gather(n)
	var wg sync.WaitGroup
	for i := range n {
		charges := threeCharges(t)
		for j := range charges {
			charges[j].Cost = int64(i + 1)
		}
		wg.Go(func() {
			var d limit.Decision
			left[i] = -1
			req := &limit.Request{Owner: ownerNumber(i), Charges: charges}
			if errs[i] = s.Decide(t.Context(), req, time.Now(), &d); errs[i] == nil {
				left[i] = d.Results[0].Remaining()
			}
		})
	}
	wg.Wait()
	return left, errs
}

// statistic returns one of the numbers of INFO.
func statistic(t *testing.T, c *goredis.Client, section, name string) int {
	t.Helper()
	text, err := c.Info(t.Context(), section).Result()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(text, "\n"+name+":")
	n, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]))
	if err != nil {
		t.Fatalf("INFO %s has no %s: %v", section, name, err)
	}
	return n
}

// Guarantees that decisions that are made at the same moment share a write, and that each gets its own answer. Answers
// that are mixed up would charge one tenant for another.
func TestDecisionsShareAWrite(t *testing.T) {
	const n = 20
	server := redistest.Start(t)
	s, admin := open(t, redis.Config{Addrs: []string{server.Addr}, Deadline: longDeadline}), server.Client(t)
	for round := range int64(3) { // first with counters that do not exist yet
		before := statistic(t, admin, "stats", "total_reads_processed")
		left, errs := decideInOneBatch(t, s, n)
		for i := range int64(n) {
			if want := 1000 - (round+1)*(i+1); errs[i] != nil || left[i] != want {
				t.Errorf("round %d, owner %d: %d left, %v; want %d", round, i, left[i], errs[i], want)
			}
		}
		// one of the reads is that of this test's INFO
		if reads := statistic(t, admin, "stats", "total_reads_processed") - before - 1; round == 2 && reads >= n/2 {
			t.Errorf("the server read %d times for %d decisions, want them to share a write", reads, n)
		}
	}
}

// Guarantees that a decision that fails in the server fails by itself, and that a server without our scripts gets them
// for each decision of a batch.
func TestErrorsInABatch(t *testing.T) {
	const n = 8
	server := redistest.Start(t)
	s, admin := open(t, redis.Config{Addrs: []string{server.Addr}, Deadline: longDeadline}), server.Client(t)
	decideInOneBatch(t, s, n)
	if err := admin.Set(t.Context(), fmt.Sprintf("{rl:%s}", ownerNumber(3).AppendKey(nil)), "no pack",
		0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	left, errs := decideInOneBatch(t, s, n)
	for i := range int64(n) {
		switch want := 1000 - 2*(i+1); {
		case i == 3:
			if !errors.Is(errs[i], limit.ErrUnreadable) {
				t.Errorf("owner %d: %v, want ErrUnreadable", i, errs[i])
			}
		case errs[i] != nil || left[i] != want:
			t.Errorf("owner %d: %d left, %v; want %d", i, left[i], errs[i], want)
		}
	}
}

// Guarantees that the decisions of a batch whose replies are lost are errors and are not sent again.
func TestLostRepliesOfABatch(t *testing.T) {
	const n = 8
	server := redistest.Start(t)
	p := newProxy(t, server.Addr)
	s := open(t, redis.Config{Addrs: []string{p.addr}, Deadline: time.Second})
	direct := open(t, redis.Config{Addrs: []string{server.Addr}, Deadline: longDeadline})
	decideInOneBatch(t, direct, n) // the server has the counters, and knows the scripts
	decideInOneBatch(t, direct, n)
	p.cut.Store(400) // bytes, about half of the reply
	left, errs := decideInOneBatch(t, s, n)
	p.cut.Store(-1)
	failed := 0
	for i := range int64(n) {
		if want := 1000 - 3*(i+1); errs[i] == nil && left[i] != want {
			t.Errorf("owner %d: %d left, want %d", i, left[i], want)
		}
		if errs[i] != nil {
			failed++
		}
	}
	if failed == 0 {
		t.Error("no decision fails, so the test shows nothing")
	}
	left, errs = decideInOneBatch(t, direct, n)
	for i := range int64(n) {
		if want := 1000 - 4*(i+1); errs[i] != nil || left[i] != want {
			t.Errorf("owner %d: then %d are left, %v; want %d: each charge is sent once", i, left[i], errs[i], want)
		}
	}
}

// Guarantees that a caller with an early deadline does not wait for a batch, and does not end it early.
func TestEarlyDeadlineBesideABatch(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redis.Config{Addrs: []string{server.Addr}, Deadline: longDeadline})
	charges := threeCharges(t)
	s.Gather(2)
	var wg sync.WaitGroup
	decide := func(ctx context.Context, owner int) {
		var d limit.Decision
		if err := s.Decide(ctx, &limit.Request{Owner: ownerNumber(owner), Charges: charges}, time.Now(),
			&d); err != nil {
			t.Errorf("owner %d: %v", owner, err)
		}
	}
	hurried, cancel := context.WithTimeout(t.Context(), longDeadline/2)
	defer cancel()
	decide(hurried, 2) // begins no batch, in which it would wait for further commands
	wg.Go(func() { decide(t.Context(), 1) })
	for s.Gathered() == 0 { // until the first caller has begun a batch
		runtime.Gosched()
	}
	decide(hurried, 2)
	if n := s.Gathered(); n != 1 {
		t.Errorf("after the decision with the early deadline, %d commands wait in a batch, want 1", n)
	}
	decide(t.Context(), 3)
	wg.Wait()
}
