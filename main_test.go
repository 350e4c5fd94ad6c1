package sluice_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Guarantees that neither a closed limiter nor one that New refused leaves a goroutine.
func TestMain(m *testing.M) {
	if store := os.Getenv(childEnv); store != "" {
		os.Exit(child(store))
	}
	goleak.VerifyTestMain(m)
}
