package token_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Who signed a token is settled without asking what it may do. The list of what it may use is short because each of it is
// loaded at a cold start.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/limiter/refresh", "github.com/go-jose/go-jose/v4/...", "github.com/hashicorp/golang-lru/v2")
}
