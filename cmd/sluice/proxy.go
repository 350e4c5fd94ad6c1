package main

import (
	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/internal/gateway"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// gatewayFlags adds the flags of a gateway. without says what happens without --upstream.
func gatewayFlags(f *pflag.FlagSet, upstreams *[]gateway.Upstream, trustedHops *int, without string) {
	f.Func("upstream", "`URL` of the service behind the gateway, or [HOST][/PATH]=URL for requests of that host, and "+
		"below that path; h2c://HOST is HTTP/2 without TLS; may be repeated"+without, func(text string) error {
		u, err := gateway.ParseUpstream(text)
		*upstreams = append(*upstreams, u)
		return err
	})
	numberFlag(f, trustedHops, "trusted-hops", 0, 0, identity.MaxHops, "take the client's address from the "+
		"`N`th X-Forwarded-For entry from the right, because N proxies of yours are in front; 0 takes the address of "+
		"the connection")
}

// issuersFlags adds the flags about JWTs.
func issuersFlags(f *pflag.FlagSet, file *string, claims *[]string) {
	f.StringVar(file, "issuers", "", "accept JWTs of the issuers in `FILE`, a JSON array as in docs/authorizer.md")
	f.StringSliceVar(claims, "claims", nil, "`LIST` of the claims of JWTs that limits name in per: claim:NAME")
}
