package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/gateway"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/sluicelimits/sluice/internal/serve"
	"github.com/sluicelimits/sluice/internal/server"
)

// proxyConnections is the default of --max-connections of sluice proxy.
const proxyConnections = 20_000

func newProxyCommand() *cobra.Command {
	var o serveOptions
	var file string
	o.run.Proxy = new(serve.Proxy)
	c := &cobra.Command{
		Use:   "proxy",
		Short: "Run a reverse proxy that checks every request against its tenant's plan",
		Long: `Runs a reverse proxy in front of your services. It finds out who calls by an API key or by a JWT of
your identity provider, checks the limits of the caller's plan, and passes the request on: HTTP/1.1,
HTTP/2, gRPC and WebSocket, without waiting for the end of a body. Counters are in memory, in Redis or
in DynamoDB. Plans files and certificates are read again when they change, and on SIGHUP.

Flags may also be in a file (--config): the key of --redis-deadline is redisDeadline. A flag of the
command line replaces that of the file. See docs/proxy.md.`,
		Example: "  sluice proxy --plans plans.yaml --upstream http://127.0.0.1:3000 --issuers issuers.json\n" +
			"  sluice proxy --config proxy.yaml",
		Args: flagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			at, err := readFlags(c.Flags(), file)
			if err != nil {
				return err
			}
			if err := o.check(); err != nil {
				return usage(at.place(err))
			}
			return at.place(o.start(c))
		},
	}
	f, run := c.Flags(), &o.run
	f.StringVar(&file, "config", "", "YAML `FILE` with flags, by their names in camel case")
	o.planFlags.flags(f, "`FILE` with plans, tenants and keys; may be repeated")
	f.StringVar(&run.Server.Listen, "listen", "127.0.0.1:8080", "`ADDRESS` of the proxy")
	gatewayFlags(f, &run.Proxy.Upstreams, &run.Proxy.TrustedHops, "")
	durationFlag(f, &run.Proxy.UpstreamTimeout, "upstream-timeout", gateway.DefaultUpstreamTimeout, time.Millisecond,
		"longest `TIME` until the headers of an upstream's answer; bodies have no bound")
	numberFlag(f, &run.Proxy.MaxBody, "max-body", 0, 0, math.MaxInt64, "refuse requests whose body has more than "+
		"`BYTES`; 0: none")
	issuersFlags(f, &run.Proxy.Tokens)
	f.StringVar(&run.Server.HTTP, "http", "", "`ADDRESS` of /v1, the API for your services (default: none)")
	numberFlag(f, &run.Server.MaxConnections, "max-connections", proxyConnections, 1, 1_000_000,
		"accept at most `N` connections for each server")
	numberFlag(f, &run.Server.MaxMessage, "max-message", server.DefaultMaxMessage, 1024, 4<<20,
		"refuse requests to --http of more than `BYTES`")
	o.commonFlags(c)
	return c
}

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
func issuersFlags(f *pflag.FlagSet, t *gateway.Tokens) {
	f.StringVar(&t.Issuers, "issuers", "", "accept JWTs of the issuers in `FILE`, a JSON array as in "+
		"docs/authorizer.md")
	f.StringSliceVar(&t.Claims, "claims", nil, "`LIST` of the claims of JWTs that limits name in per: claim:NAME")
}

// flagPlaces are the places of the flags that a file sets.
type flagPlaces map[string]configfile.Place

// readFlags sets flags from a YAML file: a mapping whose keys are the names of flags in camel case. The value of a flag
// that may be repeated can be a list, or a mapping where the flag takes KEY=VALUE. Flags of the command line stay as
// they are. Without a file, nothing is set.
func readFlags(f *pflag.FlagSet, file string) (flagPlaces, error) {
	if file == "" {
		return nil, nil
	}
	sources, err := configfile.ReadFiles(configyaml.Parse, nil, file)
	if err != nil {
		return nil, err
	}
	var r configfile.Reader
	doc := r.Open(sources[0], "it needs at least upstream and plans")
	if doc.Root == nil {
		return nil, r.Err()
	}
	flags, schema := map[string]*pflag.Flag{}, &configfile.Schema{What: "the file"}
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Name != "config" && flag.Name != "help" {
			key := camelCase(flag.Name)
			flags[key], schema.Keys = flag, append(schema.Keys, key)
		}
	})
	at := flagPlaces{}
	if o, ok := r.Object(configfile.Value{Doc: doc, Node: doc.Root}, schema); ok {
		for _, e := range o.Entries {
			if flag := flags[e.Key]; !flag.Changed {
				at[flag.Name] = e.Place()
				setFlag(&r, flag, e.Value)
			}
		}
	}
	return at, r.Err()
}

// setFlag sets a flag to a value of a file.
func setFlag(r *configfile.Reader, flag *pflag.Flag, v configfile.Value) {
	set := func(v configfile.Value, key string) {
		if !v.Node.IsScalar() || v.Node.Kind == configfile.Null {
			r.Problem(v, "want a text or a number, got %s", configfile.Describe(v.Node))
		} else if err := flag.Value.Set(key + v.Node.Text); err != nil {
			r.Problem(v, "%v", err)
		}
	}
	kind := v.Node.Kind
	if repeats := []string{"func", "stringArray", "stringSlice"}; !slices.Contains(repeats, flag.Value.Type()) {
		kind = configfile.String // so that a list or a mapping is refused
	}
	switch kind {
	case configfile.Mapping:
		if pairs, ok := r.Object(v, &configfile.Schema{What: "this mapping"}); ok {
			for _, e := range pairs.Entries {
				set(e.Value, e.Key+"=")
			}
		}
	case configfile.List:
		if items, ok := r.List(v, "values"); ok {
			for _, item := range items {
				set(item, "")
			}
		}
	default:
		set(v, "")
	}
}

// place returns an error about a flag with the place in the file that sets it.
func (p flagPlaces) place(err error) error {
	if err == nil {
		return nil
	}
	name, isFlag := strings.CutPrefix(err.Error(), "--")
	name, _, _ = strings.Cut(name, " ")
	at, set := p[strings.TrimRight(name, ":")]
	if !isFlag || !set {
		return err
	}
	return fmt.Errorf("%s:%d:%d: %w", at.Doc.Name, at.Line, at.Column, err)
}

// camelCase returns redisDeadline for redis-deadline.
func camelCase(name string) string {
	words := strings.Split(name, "-")
	for i, word := range words[1:] {
		words[i+1] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.Join(words, "")
}
