package sluice_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Guarantees that a limiter that was closed leaves no goroutine behind, and one that was refused neither.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
