package dynamodb_test

import (
	"sync"
	"testing"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

func TestContract(t *testing.T) {
	t.Parallel()
	client := server(t)
	var configs sync.Map // by store, to open further stores with the same counters
	limittest.RunStoreContract(t, limittest.Config{
		New: func(tb testing.TB) limit.Store {
			c := config(client)
			s := open(tb, c)
			configs.Store(s, c)
			return s
		},
		Peer: func(tb testing.TB, s limit.Store) limit.Store {
			c, _ := configs.Load(s)
			return open(tb, c.(dynamodb.Config))
		},
		Refuses:    []limit.Algorithm{limit.SlidingLog},
		MayFail:    true,
		Leases:     true,
		Goroutines: 16, // four for each handle; together they request more than the limits have
		Scripts:    soak.Times(20),
		Repeats:    soak.Times(25),
	})
}
