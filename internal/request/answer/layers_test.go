package answer_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/layers"
)

// An answer says what was decided in HTTP's words; it must not know who asked, who decides, or over which gateway it goes.
func TestLayers(t *testing.T) { layers.Only(t, layers.Std, "./internal/limiter/limit") }
