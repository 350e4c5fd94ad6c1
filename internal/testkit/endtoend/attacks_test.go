//go:build unix

package endtoend_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// Guarantees that each kind of forged, expired or misused token is refused with a 401, through gateway and function,
// and that none of them causes a request to its issuer; a good token is accepted meanwhile.
func TestForgedTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t, wide, "acme")
	w.redis()
	ours, rsa, stranger := newSigner("ours"), tokentest.NewRSA("rsa"), newSigner("ours")
	authority := w.issuer(ours, rsa)
	w.start(2)
	a := w.serve(restLambda, w.function(open))
	now := time.Now()
	claims := func(pairs ...any) map[string]any {
		return tokentest.Claims(now, tokentest.With(append([]any{"tenant_id", "globex"}, pairs...)...))
	}
	whole := func(claims map[string]any) string {
		text, err := json.Marshal(claims)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	good := ours.Sign(claims())
	head, rest, _ := strings.Cut(good, ".")
	payload, signature, _ := cutLast(rest, ".")
	a.wantStatus(200, "GET", "/product/1", bearer(good)...)
	a.wantStatus(200, "GET", "/product/1", bearer(rsa.Sign(claims()))...)
	fetched := authority.Fetches()

	for name, text := range map[string]string{
		"alg none":                           tokentest.Unsigned("ours", claims()),
		"alg none, without a kid":            tokentest.Unsigned("", claims()),
		"HS256 with the RSA public key":      tokentest.HS256("rsa", rsa.PublicPEM(), claims()),
		"HS256 with the EC public key":       tokentest.HS256("ours", ours.PublicPEM(), claims()),
		"HS256 with the published key set":   tokentest.HS256("rsa", []byte(tokentest.Document(rsa)), claims()),
		"RS256 in name, by an EC key":        stranger.Raw(`{"alg":"RS256","kid":"rsa"}`, whole(claims())),
		"expired":                            ours.Sign(claims("exp", now.Add(-time.Minute).Unix())),
		"without an expiry":                  ours.Sign(claims("exp", tokentest.Absent{})),
		"not yet valid":                      ours.Sign(claims("nbf", now.Add(10*time.Minute).Unix())),
		"another issuer":                     ours.Sign(claims("iss", "https://login.example.com.evil.example/")),
		"another audience":                   ours.Sign(claims("aud", "https://api.example.com.evil.example")),
		"a stranger's key under a known kid": stranger.Sign(claims()),
		"its own key in the header": stranger.Sign(claims(), tokentest.With("jwk", stranger.JWK(), "jku",
			"https://evil.example/keys")),
		"a tenant put into another's token": head + "." + tokentest.Encode(whole(claims("tenant_id", "acme"))) + "." +
			signature,
		"without its signature": head + "." + payload + ".",
		"a critical extension nobody knows": ours.Sign(claims(), tokentest.With("crit", []string{"b64"}, "b64",
			false)),
		"no tenant":                   ours.Sign(claims("tenant_id", tokentest.Absent{})),
		"a tenant that is a list":     ours.Sign(claims("tenant_id", []string{"acme"})),
		"a path to a file as its kid": ours.Sign(claims(), tokentest.With("kid", "../../../../dev/null")),
		"an address as its kid": ours.Sign(claims(),
			tokentest.With("kid", "https://evil.example/jwks.json")),
		"a statement as its kid":            ours.Sign(claims(), tokentest.With("kid", "x' UNION SELECT 'secret")),
		"a kid of 4 KB":                     ours.Sign(claims(), tokentest.With("kid", strings.Repeat("k", 4<<10))),
		"garbage":                           "eyJ.eyJ.eyJ",
		"a good one, and then more":         good + ".more",
		"a character more in its signature": good + "A",
	} {
		if got := a.send("GET", "/product/1", bearer(text)...); got.status != http.StatusUnauthorized {
			t.Errorf("%s: %s, want 401", name, got)
		}
		// A good API key in addition does not change that.
		if got := a.send("GET", "/product/1", append(bearer(text),
			w.key("acme")...)...); got.status != http.StatusUnauthorized {
			t.Errorf("%s, with a good API key: %s, want 401", name, got)
		}
	}
	// A token and a key in one request must be of the same tenant.
	a.wantStatus(401, "GET", "/product/1", append(bearer(good), w.key("acme")...)...)
	a.wantStatus(200, "GET", "/product/1", append(bearer(ours.Sign(claims("tenant_id", "acme"))), w.key("acme")...)...)
	if n := authority.Fetches(); n > fetched {
		t.Errorf("the issuer was asked %d times more", n-fetched)
	}
}

// Guarantees that a flood of tokens, each with another kid, is refused without a request to the issuer for each, while
// good tokens are still accepted.
func TestKidFlood(t *testing.T) {
	t.Parallel()
	w := newWorld(t, wide)
	w.redis()
	ours := newSigner("ours")
	authority := w.issuer(ours)
	w.start(environments)
	a := w.serve(restLambda, w.function(open))
	good := user(ours, 0)
	a.wantStatus(200, "GET", "/product/1", good...)
	forged := newSigner("x")
	l := a.begin(4, func(client, n int) (string, []string) {
		return "/product/1", []string{"Authorization", "Bearer " + forged.Sign(tokentest.Claims(time.Now(), nil),
			tokentest.With("kid", fmt.Sprint(client, ".", n)))}
	}, func(r *reply) string { return fmt.Sprint(r.status) })
	l.until(t, "the flood", func(n map[string]int) bool { return n["401"] >= 300 })
	for range 20 {
		a.wantStatus(200, "GET", "/product/1", good...)
	}
	counts, _, err := l.end()
	if err != nil || len(counts) != 1 {
		t.Errorf("the answers to forged tokens are %v, %v; want only 401", counts, err)
	}
	if n := authority.Fetches(); n > 2*environments {
		t.Errorf("%d forged tokens made %d requests to the issuer", counts["401"], n)
	}
}

// Guarantees that a token of any size gets an answer: from the function if it fits an event, and otherwise from the
// gateway, which accepts 10,240 bytes of headers, or from its server.
func TestHugeTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t, wide)
	w.redis()
	w.issuer(newSigner("ours"))
	w.start(1)
	signer := newSigner("ours")
	for name, a := range map[string]*api{"REST": w.serve(restLambda, w.function(open)),
		"HTTP": w.serve(httpLambda2, w.function(open))} {
		for bytes, want := range map[int]int{9 << 10: 401, 11 << 10: 431, 32 << 10: 431, 1 << 20: 431} {
			text := signer.Sign(tokentest.Claims(time.Now(), tokentest.With("pad", "")))
			text = signer.Sign(tokentest.Claims(time.Now(),
				tokentest.With("pad", strings.Repeat("p", (bytes-len(text))*3/4))))
			// A server may close the connection while the client still sends. Then there is no answer to read.
			if want == 401 && name == "HTTP" {
				want = 403
			}
			got, err := a.try("GET", "/product/1", "Authorization", "Bearer "+text)
			var cut *net.OpError
			if err != nil && !(bytes == 1<<20 && errors.As(err, &cut)) || err == nil && got.status != want {
				t.Errorf("%s, a token of %d bytes: %v %v, want %d", name, len(text), got, err, want)
			}
		}
		want := 401 // and goes on serving
		if name == "HTTP" {
			want = 403
		}
		a.wantStatus(want, "GET", "/product/1")
	}
}

// Guarantees that an issuer that is slow, fails, sends nothing or sends invalid data causes a 429 within a bounded time
// for its own tokens, and neither a 5xx nor an admission. Requests with API keys are decided meanwhile, and its tokens
// are accepted when the issuer works again.
func TestIssuerThatIsNotWell(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]tokentest.Responder{
		"hangs":      tokentest.Hang,
		"fails":      tokentest.Answer(http.StatusInternalServerError, "no"),
		"is empty":   tokentest.Answer(http.StatusOK, ""),
		"has no key": tokentest.Answer(http.StatusOK, `{"keys":[]}`),
		"is HTML":    tokentest.Answer(http.StatusOK, "<html>"),
		"is away":    func(*http.Request) (tokentest.Reply, error) { return tokentest.Reply{}, errors.New("cut") },
		"leads away": func(*http.Request) (tokentest.Reply, error) {
			return tokentest.Reply{Status: http.StatusFound, Location: "http://evil.example/keys"}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, wide, "acme")
			w.redis()
			ours := newSigner("ours")
			authority := w.issuer(ours)
			authority.Set(answer)
			w.start(1)
			a := w.serve(restAnswered(t), w.function(open))
			good := user(ours, 0)
			// without a deadline, waiting for keys would end with the function's timeout: a 500
			got := a.wantStatus(429, "GET", "/product/1", good...)
			if p := got.problem(t); !strings.HasSuffix(p.Type, "#caller-not-identified") {
				t.Errorf("while the issuer fails, a token gets %s", got)
			}
			a.wantStatus(200, "GET", "/product/1", w.key("acme")...)
			authority.Set(tokentest.Answer(http.StatusOK, tokentest.Document(ours)))
			mustFinish(t, func() error {
				got := a.send("GET", "/product/1", good...)
				if got.status != http.StatusOK {
					return fmt.Errorf("%s", got)
				}
				return nil
			})
		})
	}
}

const addressed = wide + `
ipLimits: [ { id: address, tiers: [ { period: ` + year + `, threshold: 3 } ] } ]
`

// Guarantees that for each number of trusted proxies the client's address is the one that the operator's outermost
// proxy wrote, whatever a client adds to the left of it: invalid text, many entries, an address in another spelling. A
// client with forged headers neither gets a counter of its own nor spends that of another client.
func TestForgedForwardedFor(t *testing.T) {
	t.Parallel()
	// X-Forwarded-For as it reaches the gateway, which adds the address of its peer. With n proxies, the nth entry from
	// the right counts. %s stands for what a client claims.
	for hops, through := range []string{0: "%s", 1: "%s, 198.51.100.22", 2: "%s, 198.51.100.33, 203.0.113.33",
		3: "%s, 198.51.100.44, 203.0.113.44, 203.0.113.33"} {
		t.Run(fmt.Sprint(hops), func(t *testing.T) {
			t.Parallel()
			told.secret("an address", "198.51.100.22")
			told.secret("an address", "198.51.100.33")
			told.secret("an address", "203.0.113.33")
			told.secret("an address", "198.51.100.44")
			told.secret("an address", "203.0.113.44")
			w := newWorld(t, addressed, "acme")
			w.redis()
			w.env["SLUICE_TRUSTED_HOPS"] = fmt.Sprint(hops)
			w.start(2)
			a := w.serve(restAnswered(t), w.function(open))
			status := make(map[int]int)
			for _, claim := range []string{"", "203.0.113.1", "203.0.113.2, 203.0.113.3", "::ffff:203.0.113.4",
				"127.0.0.1", "unknown, _hidden", "' OR 1=1 --",
				strings.Repeat("203.0.113.5, ", 500), "\t,,,,", "2001:db8::1", "[2001:db8::2]:80", "999.1.1.1"} {
				for one := range strings.SplitSeq(claim, ",") {
					if addr, err := netip.ParseAddr(strings.TrimSpace(one)); err == nil && !addr.IsLoopback() {
						told.secret("an address", addr.String())
					}
				}
				header := strings.TrimPrefix(fmt.Sprintf(through, claim), ", ")
				got := a.send("GET", "/product/1", append(w.key("acme"), "X-Forwarded-For", header)...)
				status[got.status]++
			}
			if status[200] != 3 || status[429] != 9 {
				t.Errorf("%d hops: %v, want 3 times 200 and then 429", hops, status)
			}
		})
	}
}

// Guarantees that an address has one counter however it is spelled, that all addresses of a customer's IPv6 network
// have one together, and that other addresses have their own.
func TestSpellingsOfAnAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, addressed, "acme")
	w.redis()
	w.env["SLUICE_TRUSTED_HOPS"] = "1" // a proxy of ours in front, which says whom it saw
	w.start(2)
	a := w.serve(restAnswered(t), w.function(open))
	for _, spellings := range [][]string{
		{"203.0.113.9", "::ffff:203.0.113.9", "203.0.113.9:4711", "::ffff:cb00:7109", "[::ffff:203.0.113.9]:80"},
		{"2001:db8:1:2::1", "2001:0DB8:0001:0002:ffff::1", "[2001:db8:1:2:3:4:5:6]:443", "2001:db8:1:2::1%eth0"},
		{"203.0.113.10", " 203.0.113.10 ", "203.0.113.10", "203.0.113.10:1"},
		{"2001:db8:1:3::1", "2001:db8:1:3::2", "2001:db8:1:3::3", "2001:db8:1:3::4"},
	} {
		for i, spelling := range spellings {
			told.secret("an address", strings.TrimSpace(spelling))
			want := 200
			if i >= 3 {
				want = 429
			}
			a.wantStatus(want, "GET", "/product/1", append(w.key("acme"), "X-Forwarded-For",
				"203.0.113.66, "+spelling)...)
		}
	}
}

// Guarantees that the tenant is that of the credential, whatever headers a client sends. The backend gets it from
// X-Sluice-Caller and from the middleware. A service behind the middleware gets Sluice's own headers or none.
func TestTenantHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t, wide, "acme")
	w.redis()
	w.env["SLUICE_PASS_DENIALS"] = apiID
	w.start(1)
	forged := []string{
		"X-Sluice-Tenant", "globex", "x-sluice-tenant", "globex", "X-Sluice-Caller", "d=allowed;t=globex;s=root;p=pro",
		"x-sluice-caller", "d=allowed;t=globex",
		"X-Sluice-Subject", "root", "X-Sluice-Plan", "unlimited", "X-Sluice-Key-Id", "k9", "X-Sluice-Remaining",
		"999999", "X-Sluice-Problem", "{}",
		"X-Tenant-Id", "globex", "X-Ratelimit-Limit", "999999", "Ratelimit", `"burst";r=999999`,
		"X-Amzn-Request-Context", `{"authorizer":{"tenant":"globex"}}`,
	}
	for kind, a := range map[string]*api{
		"built-in REST": w.serve(builtin(t, "rest"), nil),
		"built-in HTTP": w.serve(builtin(t, "http"), nil),
		"HTTP, service": w.serve(fmt.Sprintf(httpService, w.backend()), nil),
		"HTTP, Lambda":  w.serve(httpLambda2, w.function(behind)),
		"REST, Lambda":  w.serve(restLambda, w.function(behind)),
	} {
		// No credential, with anything else. The built-in HTTP API shows what the middleware would get.
		if kind == "built-in HTTP" {
			if got := a.wantStatus(200, "GET", "/product/1", forged...); !strings.Contains(got.body,
				"d=no_credential") ||
				strings.Contains(got.body, "t=globex") {
				t.Errorf("%s, without a credential: %s", kind, got.body)
			}
		} else {
			a.wantStatus(401, "GET", "/product/1", forged...)
		}
		// Naming X-Sluice-… in Connection would make a proxy remove these headers.
		got := a.wantStatus(200, "GET", "/product/1", append(append(w.key("acme"), forged...), "Connection",
			"X-Sluice-Caller, X-Sluice-Tenant")...)
		if strings.HasPrefix(kind, "built-in") {
			if !strings.Contains(got.body, `"tenant": "acme"`) || strings.Contains(got.body, `t=globex`) {
				t.Errorf("%s: %s", kind, got.body)
			}
			continue
		}
		s := got.seen(t)
		if s.Tenant != "acme" || s.Subject != "ci" || s.Plan != "pro" || s.KeyID != "k0" {
			t.Errorf("%s: the backend got %+v", kind, s)
		}
		if got.header.Get("X-Ratelimit-Limit") != "1000000" {
			t.Errorf("%s: the client got the headers %v", kind, got.header)
		}
		if kind == "HTTP, service" {
			for name, value := range s.Header {
				if strings.HasPrefix(strings.ToLower(name), "x-sluice-") && (strings.Contains(value, "globex") ||
					strings.Contains(value, "999999") || strings.Contains(value, "unlimited")) {
					t.Errorf("%s: the backend got %s: %s", kind, name, value)
				}
			}
		}
	}
}

// Guarantees that tenants whose names differ only by a character that is a separator somewhere, by case or by an
// encoding share no counter.
func TestTenantsByASeparator(t *testing.T) {
	t.Parallel()
	names := []string{"a/b", "a%2Fb", "a:b", "a|b", "a b", "a+b", "a{b", "a}b", "A/b", "a", "b", "a\u2044b", "rl:a",
		"a.b", "a,b", "a;b", "a\\b", `a"b`}
	plans := "plans: [ { id: pro, limits: [ { id: burst, tiers: [ { period: " + year +
		", threshold: 2 } ] } ] } ]\ntenants:\n"
	for _, name := range names {
		plans += fmt.Sprintf("  - { id: %q, plan: pro }\n", name)
	}
	w := newWorld(t, plans)
	w.redis()
	ours := newSigner("ours")
	w.issuer(ours)
	w.start(2)
	a := w.serve(restAnswered(t), w.function(behind))
	for _, name := range names {
		header := bearer(ours.Sign(tokentest.Claims(time.Now(), tokentest.With("tenant_id", name, "sub", "b/c"))))
		for range 2 {
			if s := a.wantStatus(200, "GET", "/product/1", header...).seen(t); s.Tenant != name || s.Subject != "b/c" {
				t.Errorf("for the tenant %q the backend got %+v", name, s)
			}
		}
		wantDenial(t, a.wantStatus(429, "GET", "/product/1", header...))
	}
}

// Guarantees that no other spelling of a path escapes the limit of its endpoint, on REST and HTTP APIs, and that a path
// that the backend treats as another one has its own counter.
func TestPathAliases(t *testing.T) {
	t.Parallel()
	const plans = "plans: [ { id: pro, limits: [ { id: burst, per: endpoint, match: { methods: [GET], pathPattern: " +
		"/v1/product/* }, tiers: [ { period: " + year + ", threshold: 1 } ] } ] } ]\n" +
		"tenants: [ { id: acme, plan: pro } ]\n"
	w := newWorld(t, plans, "acme")
	w.redis()
	w.env["SLUICE_PASS_DENIALS"] = apiID
	w.start(2)
	backend := w.function(behind)
	rest, service := w.serve(restAnswered(t), backend), w.serve(httpLambda2, backend)
	rest.wantStatus(200, "GET", "/v1/product/1", w.key("acme")...)
	for kind, a := range map[string]*api{"REST": rest, "HTTP": service} {
		for _, alias := range []string{"/v1/product/1", "/v1/product/1/", "/v1//product/1", "//v1/product/1",
			"/v1/./product/1", "/v1/x/../product/1", "/v1/%2e/product/1",
			"/v1/x/%2e%2e/product/1", "/v1/x/%2E%2E/product/1", "/v1/%70roduct/1", "/v1%2Fproduct%2F1",
			"/v1/product%2F1", "/v1/product/%31", "/v1/product/1?x=/",
			"/v1/product/.", "/v1/product/..", "/v1/product/%2e", "/v1/product/%2E%2e",
			"/v1/product/1?", "/v1/product/2", "/v1/product/1;v=2", "/v1;a=b/product/1", "/v1/product;x/1",
			"/v1/product/1/.", "/v1/product/1%2F", "/%76%31/product/1"} {
			got := a.send("GET", alias, w.key("acme")...)
			if got.status != http.StatusTooManyRequests {
				t.Errorf("%s %s escapes the limit: %s", kind, alias, got)
			}
		}
		for _, other := range []string{"/v1/products/1", "/v1/product", "/v1/product/1/2", "/v2/product/1"} {
			a.wantStatus(200, "GET", other, w.key("acme")...)
		}
		// Paths are case-sensitive by RFC 3986 and in API Gateway's own routing: a path with other letters is another
		// resource.
		a.wantStatus(200, "GET", "/V1/Product/1", w.key("acme")...)
	}
}

// Guarantees that the name of a tenant, subject or limit cannot add a header or a line: names are percent-encoded in
// all output. A plans file with names that are not allowed stops the function, and then nobody is admitted.
func TestHeaderInjection(t *testing.T) {
	t.Parallel()
	evil := []string{"é\u2028%0d%0aX-Injected: 1", `a", "injected": "1`, "a\u00a0b, c", "${context.authorizer.caller}",
		"$context.authorizer.tenant"}
	plans := "plans: [ { id: pro, limits: [ { id: burst, tiers: [ { period: " + year +
		", threshold: 1 } ] } ] } ]\ntenants:\n"
	for _, name := range evil {
		plans += fmt.Sprintf("  - { id: %q, plan: pro }\n", name)
	}
	w := newWorld(t, plans)
	w.redis()
	w.env["SLUICE_PASS_DENIALS"] = apiID
	ours := newSigner("ours")
	w.issuer(ours)
	w.start(1)
	service, rest := w.serve(fmt.Sprintf(httpService, w.backend()), nil), w.serve(restAnswered(t), w.function(behind))
	for _, name := range evil {
		header := bearer(ours.Sign(tokentest.Claims(time.Now(), tokentest.With("tenant_id", name, "sub", name))))
		got := service.wantStatus(200, "GET", "/product/1", header...)
		if s := got.seen(t); s.Tenant != name || s.Subject != name || s.Header["X-Injected"] != "" {
			t.Errorf("for the tenant %q the backend got %+v", name, s)
		}
		for kind, denied := range map[string]*reply{"HTTP": service.wantStatus(429, "GET", "/product/1", header...),
			"REST": rest.wantStatus(429, "GET", "/product/1", header...)} {
			wantDenial(t, denied)
			if denied.header.Get("X-Injected") != "" || strings.Contains(denied.body, "injected") {
				t.Errorf("%s of %q: %s", kind, name, denied)
			}
		}
	}
	// A token may contain any text, but there is no tenant with such a name.
	for _, name := range []string{"acme\r\nX-Injected: 1", "acme\nx", "acme\x00", "\x1b[31macme"} {
		header := bearer(ours.Sign(tokentest.Claims(time.Now(), tokentest.With("tenant_id", name))))
		for _, a := range []*api{service, rest} {
			if got := a.send("GET", "/product/1", header...); got.status != 401 && got.status != 403 &&
				got.status != 429 || got.header.Get("X-Injected") != "" {
				t.Errorf("a tenant %q: %s", name, got)
			}
		}
	}
	for _, l := range w.output() {
		if strings.ContainsAny(l, "\x00\x1b\r") {
			t.Errorf("a line has a control character: %q", l)
		}
	}

	for _, bad := range []string{`plans: [ { id: pro, limits: [ { id: "burst\r\nX-Injected: 1", tiers: [ { period: ` +
		`1s, threshold: 1 } ] } ] } ]`,
		"plans: [ { id: pro, limits: [ { id: burst, tiers: [ { period: 1s, threshold: 1 } ] } ] } ]\ntenants: [ { " +
			"id: \"acme\\r\\nX-Injected: 1\", plan: pro } ]"} {
		w := newWorld(t, bad)
		w.start(1)
		got := w.serve(restAnswered(t), w.function(open)).wantStatus(500, "GET", "/product/1")
		if got.header.Get("X-Injected") != "" {
			t.Errorf("with a plans file that is not allowed, a request gets %s", got)
		}
	}
}

// Guarantees that a plan is enforced even if it has so many limits that their description does not fit an answer. The
// binding limit is described, limits without room are left out as a whole, and the answer stays within API Gateway's
// bounds.
func TestContextThatIsTooLarge(t *testing.T) {
	t.Parallel()
	plans := "plans:\n  - id: pro\n    limits:\n"
	const limits = 300
	for i := range limits {
		plans += fmt.Sprintf("      - { id: %s-%03d, tiers: [ { period: %s, threshold: %d } ] }\n",
			strings.Repeat("a-limit-with-a-long-name", 2), i, year, 1000+i)
	}
	plans += "      - { id: burst, tiers: [ { period: " + year +
		", threshold: 3 } ] }\ntenants: [ { id: acme, plan: pro } ]\n"
	w := newWorld(t, plans, "acme")
	w.redis()
	w.env["SLUICE_PASS_DENIALS"] = apiID
	w.start(1)
	service, rest := w.serve(fmt.Sprintf(httpService, w.backend()), nil), w.serve(restAnswered(t), w.function(behind))
	for range 3 {
		got := service.wantStatus(200, "GET", "/product/1", w.key("acme")...)
		wantLimits(t, got)
		if got.header.Get("X-Ratelimit-Limit") != "3" {
			t.Errorf("the binding limit is not told: %v", got.header)
		}
	}
	for kind, got := range map[string]*reply{"HTTP": service.wantStatus(429, "GET", "/product/1", w.key("acme")...),
		"REST": rest.wantStatus(429, "GET", "/product/1", w.key("acme")...)} {
		wantDenial(t, got)
		bytes := 0
		for name, lines := range got.header {
			bytes += len(name) + len(strings.Join(lines, ""))
		}
		const most = 10240 // of all headers of an answer
		if bytes > most || !strings.HasPrefix(got.header.Get("Ratelimit-Policy"), `"burst"`) {
			t.Errorf("%s: %d bytes of headers, the policy begins %.60s", kind, bytes,
				got.header.Get("Ratelimit-Policy"))
		}
	}
}
