package apigw_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// What API Gateway reads and writes is translated without knowing who decides, so that a backend that only reads the context
// does not link a limiter, nor anyone the AWS SDK.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./internal/request/answer")
}
