package serve

import (
	"errors"
	"net/http"
	"time"

	"github.com/sluicelimits/sluice/authorizer"
	"github.com/sluicelimits/sluice/internal/gateway"
	"github.com/sluicelimits/sluice/internal/limiter/inflight"
	"github.com/sluicelimits/sluice/internal/server"
	"github.com/sluicelimits/sluice/internal/stores"
)

// Proxy says what `sluice proxy` does in place of the service for Envoy.
type Proxy struct {
	Upstreams       []gateway.Upstream // required
	UpstreamTimeout time.Duration
	TrustedHops     int
	MaxBody         int64 // bytes; 0: any
	Tokens          gateway.Tokens
}

// checkProxy checks the flags of the proxy.
func (o *Options) checkProxy() error {
	switch {
	case len(o.Proxy.Upstreams) == 0:
		return errors.New("--upstream is missing: it names the service that gets the requests, such as --upstream " +
			"http://127.0.0.1:3000")
	case o.ConfigTable == "" && len(o.Plans) == 0:
		return errors.New("--plans is missing: it names a file with the plans, tenants and keys (docs/plans.md), " +
			"such as --plans plans.yaml; in a cell of a deployment, --config-table has them")
	}
	return errors.Join(o.Proxy.Tokens.Check(), server.CheckAddress("--listen", o.Server.Listen, server.EveryAddress))
}

// openProxy makes the handler of the proxy.
func (o *Options) openProxy(
	plans *authorizer.Authorizer, counters *stores.Counters, told *server.Metrics,
) (*gateway.Gateway, error) {
	return gateway.New(gateway.Config{Authorizer: plans, Upstreams: o.Proxy.Upstreams, TrustedHops: o.Proxy.TrustedHops,
		UpstreamTimeout: o.Proxy.UpstreamTimeout, MaxBody: o.Proxy.MaxBody, Log: o.Log,
		Places: &inflight.Keeper{Store: counters.Tenants, Now: time.Now, Log: o.Log},
		Decided: func(a *authorizer.Answer, _ *http.Request, took time.Duration) {
			told.Decisions.At(a.Kind.String()).Observe(took)
		}})
}
