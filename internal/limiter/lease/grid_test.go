package lease_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/lease/leasetest"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// Guarantees that processes that lease a limit admit nearly all of it, and that the waits that they name are right.
func TestLeasesGiveTheLimit(t *testing.T) {
	soak.SkipUnderRace(t)
	store := newMemory(t)
	leasetest.Run(t, func() limit.Store { return store }, 250)
}

// Guarantees that a limit that is raised admits more at once, also where the lease layer has just denied it.
func TestRaiseIsFeltAtOnce(t *testing.T) {
	store := newMemory(t)
	leasetest.Raise(t, func() limit.Store { return store })
}
