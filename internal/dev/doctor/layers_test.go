package doctor_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// A check looks at answers and at what the SDK's clients say. It is given them: who signs, and where from, is the
// command's affair.
func TestLayers(t *testing.T) {
	layers.Only(t, layers.Std, "./events", "./internal/control/admin", "./internal/request/answer", "./internal/aws/grants",
		"./internal/request/identity", "./internal/limiter/limit",
		"github.com/aws/aws-sdk-go-v2/aws", "github.com/aws/aws-sdk-go-v2/service/...", "github.com/aws/smithy-go",
		"github.com/dunglas/httpsfv")
}
