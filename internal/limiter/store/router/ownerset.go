package router

import (
	"sync"
	"sync/atomic"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// maxOwners is how many owners a set remembers before it starts from empty. Forgetting an owner costs one lease too
// many and its return.
const maxOwners = 1000

// ownerSet is a set of owners that is nearly always empty. It is safe for concurrent use.
type ownerSet struct {
	size   atomic.Int64 // of owners, to be read without the lock
	mu     sync.Mutex
	owners map[limit.Owner]struct{}
}

func (o *ownerSet) has(owner limit.Owner) bool {
	if o.size.Load() == 0 {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_, ok := o.owners[owner]
	return ok
}

func (o *ownerSet) add(owner limit.Owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.owners == nil || len(o.owners) >= maxOwners {
		o.owners = map[limit.Owner]struct{}{}
	}
	o.owners[owner] = struct{}{}
	o.size.Store(int64(len(o.owners)))
}

func (o *ownerSet) remove(owner limit.Owner) {
	if o.size.Load() == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.owners, owner)
	o.size.Store(int64(len(o.owners)))
}
