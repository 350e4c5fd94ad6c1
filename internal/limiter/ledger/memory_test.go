package ledger_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
	"github.com/sluicelimits/sluice/internal/limiter/ledger/ledgertest"
)

func TestMemory(t *testing.T) {
	ledgertest.Run(t, ledgertest.Config{New: func(testing.TB) ledger.Ledger { return new(ledger.Memory) }})
}
