package memory_test

import (
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/ledger"
	"github.com/sluicelimits/sluice/internal/limiter/ledger/ledgertest"
	"github.com/sluicelimits/sluice/internal/limiter/store/memory"
)

func TestLedgerContract(t *testing.T) {
	ledgertest.Run(t, ledgertest.Config{New: func(testing.TB) ledger.Ledger { return new(memory.Ledger) }})
}
