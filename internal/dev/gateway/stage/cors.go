package stage

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// CORS is the CORS configuration of an HTTP API. The gateway answers preflights by it, and replaces the CORS headers of
// backends' answers.
//
// If the route of a preflight's path accepts OPTIONS (ANY, $default) and has an authorizer, the authorizer is asked
// about the preflight and denies it, since browsers send preflights without a credential. AWS documents this for
// $default. Other preflights are answered without the authorizer and the backend. No headers are added to answers that
// the gateway makes itself: API Gateway's behaviour is not documented, and this is the worse case.
type CORS struct {
	AllowOrigins     []string `yaml:"allowOrigins"` // "*", "https://*", "http://*" or origins
	AllowMethods     []string `yaml:"allowMethods"`
	AllowHeaders     []string `yaml:"allowHeaders"`
	ExposeHeaders    []string `yaml:"exposeHeaders"`
	AllowCredentials bool     `yaml:"allowCredentials"`
	MaxAgeSeconds    *int     `yaml:"maxAge"` // -1..86400; nil: the header is not sent
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
		c.problem("corsConfiguration.allowCredentials", "it cannot be combined with the origin *")
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

// preflight reports whether the request is a CORS preflight and the API has a CORS configuration.
func (c *call) preflight() bool {
	return c.s.d.CORS != nil && c.r.Method == http.MethodOptions && c.r.Header.Get("Origin") != "" &&
		c.r.Header.Get("Access-Control-Request-Method") != ""
}

const corsPrefix = "Access-Control-"

// share sets the configured CORS headers for an origin, and removes the CORS headers that a backend set.
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

// allows returns the value of Access-Control-Allow-Origin for an origin; "" if the origin is not allowed.
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
