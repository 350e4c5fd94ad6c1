package admin_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// The operations know tables, not where they are: the same run in Lambda and in one process.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./events", "./internal/control/call", "./internal/cellconfig", "./internal/control", "./events/canonical",
		"./internal/aws/executeapi", "./internal/request/identity", "./internal/limiter/limit", "./internal/request/loopback", "./internal/plan",
		"./internal/plan/shares")
	layers.Forbid(t, map[string]string{"github.com/aws/": "the operations run in one process, too"})
}
