package stage

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// CORS is the setting of an HTTP API. It answers preflights, and replaces what a backend says about CORS.
//
// A preflight of a path whose route takes OPTIONS and has an authorizer (ANY, $default) is asked about like any other
// request, and is refused without a credential, as documented of $default; else it is answered without a backend. To
// answers of the gateway itself nothing is added: that is not documented, and this is the worse case.
type CORS struct {
	AllowOrigins     []string `yaml:"allowOrigins"` // "*", "https://*", "http://*" or origins
	AllowMethods     []string `yaml:"allowMethods"`
	AllowHeaders     []string `yaml:"allowHeaders"`
	ExposeHeaders    []string `yaml:"exposeHeaders"`
	AllowCredentials bool     `yaml:"allowCredentials"`
	MaxAgeSeconds    *int     `yaml:"maxAge"` // -1..86400; nil is none
}

func (c *checker) cors() {
	m := c.d.CORS
	switch {
	case m == nil:
		return
	case c.d.Kind != HTTP:
		c.problem("corsConfiguration", "only an HTTP API has one: a %s API answers preflights by a method OPTIONS",
			c.d.Kind)
		return
	case m.AllowCredentials && slices.Contains(m.AllowOrigins, "*"):
		c.problem("corsConfiguration.allowCredentials", "not with the origin *")
	case m.MaxAgeSeconds != nil && (*m.MaxAgeSeconds < -1 || *m.MaxAgeSeconds > 86400):
		c.problem("corsConfiguration.maxAge", "%d is outside -1..86400", *m.MaxAgeSeconds)
	}
	for _, l := range []struct {
		name   string
		values []string
	}{{"allowOrigins", m.AllowOrigins}, {"allowMethods", m.AllowMethods}, {"allowHeaders", m.AllowHeaders},
		{"exposeHeaders", m.ExposeHeaders}} {
		for _, v := range l.values {
			if v == "" || !sendable(v) || strings.Contains(v, ",") {
				c.problem("corsConfiguration."+l.name, "%s is not one value", shown(v))
			}
		}
	}
}

// preflight reports whether a request asks what another would be allowed.
func (c *call) preflight() bool {
	return c.s.d.CORS != nil && c.r.Method == http.MethodOptions && c.r.Header.Get("Origin") != "" &&
		c.r.Header.Get("Access-Control-Request-Method") != ""
}

const corsPrefix = "Access-Control-"

// share writes the configured headers, and takes out those that a backend wrote.
func (m *CORS) share(h http.Header, origin string, preflight bool) {
	for name := range h {
		if strings.HasPrefix(name, corsPrefix) {
			delete(h, name)
		}
	}
	allowed := m.allows(origin)
	if allowed == "" {
		return
	}
	set := func(name string, values []string) {
		if len(values) > 0 {
			h[corsPrefix+name] = []string{strings.Join(values, ",")}
		}
	}
	set("Allow-Origin", []string{allowed})
	set("Expose-Headers", m.ExposeHeaders)
	if m.AllowCredentials {
		set("Allow-Credentials", []string{"true"})
	}
	if preflight {
		set("Allow-Methods", m.AllowMethods)
		set("Allow-Headers", m.AllowHeaders)
		if m.MaxAgeSeconds != nil {
			set("Max-Age", []string{strconv.Itoa(*m.MaxAgeSeconds)})
		}
	}
}

// allows is what Access-Control-Allow-Origin tells an origin; "" is nothing.
func (m *CORS) allows(origin string) string {
	switch scheme, _, _ := strings.Cut(origin, "://"); {
	case origin == "":
		return ""
	case slices.Contains(m.AllowOrigins, "*"):
		return "*"
	case slices.Contains(m.AllowOrigins, origin), slices.Contains(m.AllowOrigins, scheme+"://*"):
		return origin
	}
	return ""
}
