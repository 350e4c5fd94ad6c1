package sluice_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Guarantees that neither a closed limiter nor one that New refused leaves a goroutine.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
