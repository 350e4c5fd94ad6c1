package limitsv1_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// Clients link the protocol, and nothing of ours besides.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "google.golang.org/grpc/...", "google.golang.org/grpc", "google.golang.org/protobuf/...")
}
