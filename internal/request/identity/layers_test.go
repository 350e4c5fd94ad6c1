package identity_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Who is calling is settled without asking who answers or what is decided.
func TestLayers(t *testing.T) {
	layers.Forbid(t, map[string]string{
		"./internal/dev/gateway":   "an identity is the same behind every gateway",
		"./internal/limiter/store": "identity is settled before anything is counted",
		"./authorizer":             "the authorizer asks identity, never the reverse",
		"./cmd":                    "programs import packages, never the reverse",
	})
}
