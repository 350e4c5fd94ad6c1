package pacer

import (
	"fmt"
	"testing"
	"time"
)

// Keys whose tickets expire or are canceled are forgotten, although nothing is served and another ticket waits all the
// time, as while the store of a shared limit is away.
func TestKeysAreForgottenWhileNothingIsServed(t *testing.T) {
	for _, expire := range []bool{true, false} {
		q := newQueue()
		q.push("waits for ever", 1, never, nil)
		for i := range 10_000 {
			now := time.Duration(i) * ms
			q.push(fmt.Sprint(i), 1, now+time.Second, nil)
			if !expire {
				q.cancel(q.latest.node)
			}
			for e := q.expired(now); e != 0; e = q.expired(now) {
				q.remove(e)
			}
		}
		q.settle()
		if len(q.keys) > 1100 {
			t.Errorf("expire %t: the queue remembers %d keys, of which %d have tickets", expire, len(q.keys),
				len(q.busy.items))
		}
	}
}

// A ticket is found by the last 32 bits of its serial number. It is told apart from one in the same node that was made
// 2^32 tickets later, and the ticket whose last 32 bits are 0 has another number.
func TestMarksThatRepeat(t *testing.T) {
	q := newQueue()
	push := func(serial uint64) place {
		q.latest.serial = serial - 1
		q.push("a", 1, never, nil)
		return q.latest
	}
	push(1)
	early := push(7)
	q.remove(early.node)
	late := push(1<<32 + 7)
	if late.node != early.node {
		t.Fatal("the node is not used again: the test shows nothing")
	}
	if q.find(early) != 0 || q.find(late) != late.node {
		t.Errorf("an early ticket is found at %d, and the late one at %d, want 0 and %d", q.find(early), q.find(late),
			late.node)
	}
	zero := push(1 << 33)
	if q.find(zero) != zero.node {
		t.Errorf("the ticket with the serial %d is not found", zero.serial)
	}
	if q.remove(zero.node); q.find(zero) != 0 {
		t.Errorf("the ticket with the serial %d is found after it was removed", zero.serial)
	}
}
