package stage

import (
	"cmp"
	"embed"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicelimits/sluice/internal/dev/gateway/front"
)

// Kind is the kind of an API.
type Kind string

// The kinds.
const (
	REST      Kind = "REST"
	HTTP      Kind = "HTTP"
	WebSocket Kind = "WebSocket"
)

// Description describes one stage of one API. A setting of API Gateway that this type cannot express is not supported,
// and reading a description with such a setting is an error. Names of types and mappings are those of API Gateway.
type Description struct {
	Kind           Kind                       `yaml:"kind"`
	API            string                     `yaml:"api"`         // id of the API; default "local"
	Stage          string                     `yaml:"stage"`       // default "$default" for an HTTP API, else "dev"
	Region         string                     `yaml:"region"`      // default "us-east-1"
	Account        string                     `yaml:"account"`     // default "000000000000"
	Authorizers    map[string]Authorizer      `yaml:"authorizers"` // by name
	Routes         []Route                    `yaml:"routes"`
	Responses      map[string]GatewayResponse `yaml:"gatewayResponses"`  // by type; REST APIs only
	ResourcePolicy []Denial                   `yaml:"resourcePolicy"`    // only REST APIs whose routes all have AWS_IAM
	CORS           *CORS                      `yaml:"corsConfiguration"` // HTTP APIs only; may be nil
}

// Authorizer is a Lambda authorizer.
type Authorizer struct {
	Function string `yaml:"function"`              // a name in Config.Functions
	Type     string `yaml:"type"`                  // "REQUEST", which is also the default
	Payload  string `yaml:"payloadFormatVersion"`  // HTTP APIs only: "1.0" or "2.0"; required
	Simple   bool   `yaml:"enableSimpleResponses"` // only HTTP APIs with payload 2.0
	// IdentitySource must be empty: Sluice's authorizer must also be asked about requests without a credential.
	IdentitySource []string `yaml:"identitySource"`
	// TTLSeconds is required and must be 0. API Gateway's default on REST APIs is to cache answers for 300 s.
	TTLSeconds *int `yaml:"resultTtlInSeconds"`
	// TimeoutMillis bounds a call of the function: 0..maxAuthorizerMillis, or maxHTTPAuthorizerMillis for an HTTP API.
	// 0 selects the largest value.
	TimeoutMillis int `yaml:"timeoutInMillis"`
}

// Route says what happens to the requests that match its key.
type Route struct {
	// Key is "GET /product/{id}" or "ANY /{proxy+}"; for HTTP APIs also "$default"; for WebSocket APIs "$connect".
	Key        string `yaml:"route"`
	Authorizer string `yaml:"authorizer"` // a name in Authorizers; "" if there is none
	// Authorization may be "AWS_IAM" on a REST API, if there is no Authorizer. If it is "", the Authorizer decides; if
	// both are "", everybody may call the route.
	Authorization string      `yaml:"authorization"`
	Integration   Integration `yaml:"integration"`
}

// The types of integrations. ECHO is not a type of API Gateway: it answers with the request that an HTTP_PROXY would
// have made, or passes this request to Config.Upstream. If it has a URL, the request is the one to that URL, but it is
// not sent to the host of the URL.
const (
	HTTPProxy = "HTTP_PROXY"
	AWSProxy  = "AWS_PROXY"
	Mock      = "MOCK" // REST and WebSocket APIs only: answers with a status and no body
	Echo      = "ECHO"
)

// Integration describes the backend of a route.
type Integration struct {
	Type string `yaml:"type"`
	// URL is the URL of an HTTP_PROXY, and optional for an ECHO. It may contain {name} for a path parameter.
	URL string `yaml:"url"`
	// Method is the method of the request to an HTTP_PROXY or ECHO. "" selects the client's method.
	Method        string `yaml:"httpMethod"`
	StatusCode    string `yaml:"statusCode"`           // only MOCK on a REST API: its status; default "200"
	Function      string `yaml:"function"`             // only AWS_PROXY: a name in Config.Functions
	Payload       string `yaml:"payloadFormatVersion"` // only AWS_PROXY of an HTTP API: "1.0" or "2.0"; required
	TimeoutMillis int    `yaml:"timeoutInMillis"`      // 50..29000, or 50..30000 for an HTTP API; default: the largest

	// RequestParameters maps the request to the backend. A key says what is set, and its value what it is set to. On a
	// REST API, a key is "integration.request.header.X" or "integration.request.path.X", and a value is, for example,
	// "context.authorizer.NAME", "method.request.path.X" or "'literal'". On an HTTP API, a key is "overwrite:header.x",
	// and a value is, for example, "$context.authorizer.NAME" or a static text.
	RequestParameters map[string]string `yaml:"requestParameters"`

	// ResponseParameters maps the headers of the backend's answer, by the status of the answer. A key of a MOCK on a
	// REST API is "method.response.header.X", and a key on an HTTP API is "overwrite:header.x".
	ResponseParameters map[string]map[string]string `yaml:"responseParameters"`
}

// GatewayResponse describes the answer of a REST API to a request that does not reach an integration.
type GatewayResponse struct {
	// StatusCode is the status of the answer. If it is "", the answer has the status of its failure.
	StatusCode string `yaml:"statusCode"`
	// Parameters maps "gatewayresponse.header.X" to a value such as "context.authorizer.NAME" or "'literal'".
	Parameters map[string]string `yaml:"responseParameters"`
	Templates  map[string]string `yaml:"responseTemplates"` // by content type; only $context.NAME is replaced in them
}

// Bounds of timeouts, as API Gateway documents them.
const (
	maxAuthorizerMillis     = 29_000 // REST and WebSocket APIs
	maxHTTPAuthorizerMillis = 10_000
	maxRESTMillis           = 29_000
	maxHTTPMillis           = 30_000
	minMillis               = 50
)

//go:embed builtin/*.yaml
var builtin embed.FS

// Builtin lists the names of the descriptions that are part of the program.
func Builtin() []string { return []string{"http", "rest", "websocket"} }

// ReadBuiltin returns the text of a description that is part of the program; false if there is none of that name.
func ReadBuiltin(name string) ([]byte, bool) {
	if !slices.Contains(Builtin(), name) {
		return nil, false
	}
	data, err := builtin.ReadFile("builtin/" + name + ".yaml")
	return data, err == nil
}

// Functions returns the names of the functions of authorizers and of integrations.
func (d *Description) Functions() (authorizers, integrations []string) {
	for _, name := range slices.Sorted(maps.Keys(d.Authorizers)) {
		authorizers = append(authorizers, d.Authorizers[name].Function)
	}
	for i := range d.Routes {
		if f := d.Routes[i].Integration.Function; f != "" {
			integrations = append(integrations, f)
		}
	}
	slices.Sort(authorizers)
	slices.Sort(integrations)
	return slices.Compact(authorizers), slices.Compact(integrations)
}

// Prefix returns what the paths of all requests begin with: "/stage", or "" for the stage $default.
func (d *Description) Prefix() string {
	if d.Stage == defaultStage {
		return ""
	}
	return "/" + d.Stage
}

const defaultStage = "$default"

// Check fills in defaults. It returns an *[Error] with all problems of the description. [New] calls it, too.
func (d *Description) Check() error {
	c := &checker{d: d}
	c.check()
	if len(c.problems) > 0 {
		return &Error{Problems: c.problems}
	}
	return nil
}

type checker struct {
	d        *Description
	problems []Problem
}

func (c *checker) problem(path, format string, args ...any) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, Problem{Path: path, Message: fmt.Sprintf(format, args...)})
	}
}

var (
	plainName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)
	number12  = regexp.MustCompile(`^[0-9]{12}$`)
)

func (c *checker) check() {
	d := c.d
	for _, f := range []struct {
		field *string
		value string
	}{{&d.API, "local"}, {&d.Region, "us-east-1"}, {&d.Account, "000000000000"}} {
		if *f.field == "" {
			*f.field = f.value
		}
	}
	switch d.Kind {
	case REST, WebSocket, HTTP:
	default:
		c.problem("kind", "want REST, HTTP or WebSocket, got %s", shown(string(d.Kind)))
		return
	}
	switch {
	case d.Stage == "" && d.Kind == HTTP:
		d.Stage = defaultStage
	case d.Stage == "":
		d.Stage = "dev"
	}
	c.names()
	for _, name := range slices.Sorted(maps.Keys(d.Authorizers)) {
		a := d.Authorizers[name]
		c.authorizer("authorizers."+name, &a)
		d.Authorizers[name] = a
	}
	c.routes()
	c.resourcePolicy()
	c.responses()
	c.cors()
}

// names checks the names of which ARNs, hosts and paths are made.
func (c *checker) names() {
	d := c.d
	for _, f := range []struct {
		at, value string
		form      *regexp.Regexp
		want      string
	}{
		{"api", d.API, plainName, "the id of an API"},
		{"region", d.Region, plainName, "a region"},
		{"account", d.Account, number12, "12 digits"},
	} {
		if !f.form.MatchString(f.value) {
			c.problem(f.at, "%s is not %s", shown(f.value), f.want)
		}
	}
	if !plainName.MatchString(d.Stage) && (d.Kind != HTTP || d.Stage != defaultStage) {
		c.problem("stage", "%s is not the name of a stage", shown(d.Stage))
	}
}

func (c *checker) authorizer(at string, a *Authorizer) {
	most := maxAuthorizerMillis
	if c.d.Kind == HTTP {
		most = maxHTTPAuthorizerMillis
	}
	switch {
	case a.Function == "":
		c.problem(at+".function", "missing")
	case a.TTLSeconds == nil:
		c.problem(at+".resultTtlInSeconds", "missing: write 0, since API Gateway's own default may cache answers, "+
			"and ours are about one request")
	case *a.TTLSeconds != 0:
		c.problem(at+".resultTtlInSeconds", "%d: answers of this authorizer are about one request and must not be "+
			"cached; want 0", *a.TTLSeconds)
	case a.TimeoutMillis < 0 || a.TimeoutMillis > most:
		c.problem(at+".timeoutInMillis", "%d is outside 0..%d", a.TimeoutMillis, most)
	}
	if a.TimeoutMillis == 0 {
		a.TimeoutMillis = most
	}
	c.authorizerForm(at, a)
	if len(a.IdentitySource) > 0 {
		c.problem(at+".identitySource", "the local gateway knows none: requests without a credential must reach the "+
			"authorizer, too")
	}
}

// authorizerForm checks the settings of an authorizer whose valid values depend on the kind of the API.
func (c *checker) authorizerForm(at string, a *Authorizer) {
	a.Type = cmp.Or(a.Type, "REQUEST")
	if a.Type != "REQUEST" {
		c.problem(at+".type", "%s: the local gateway knows REQUEST", shown(a.Type))
	}
	switch {
	case c.d.Kind == HTTP && a.Payload != "1.0" && a.Payload != "2.0":
		c.problem(at+".payloadFormatVersion", `want "1.0" or "2.0", got %s`, shown(a.Payload))
	case c.d.Kind != HTTP && (a.Payload != "" || a.Simple):
		c.problem(at+".payloadFormatVersion", "payload formats and simple responses are of HTTP APIs only")
	case a.Simple && a.Payload != "2.0":
		c.problem(at+".enableSimpleResponses", "simple responses need payload 2.0")
	}
}

func (c *checker) routes() {
	if len(c.d.Routes) == 0 {
		c.problem("routes", "missing: nothing would be served")
	}
	seen := make(map[string]int)
	for i := range c.d.Routes {
		r, at := &c.d.Routes[i], "routes["+strconv.Itoa(i)+"]"
		t, err := c.d.parseKey(r.Key)
		if err != nil {
			c.problem(at+".route", "%v", err)
		} else if first, twice := seen[t.identity()]; twice {
			c.problem(at+".route", "%s matches the same requests as routes[%d]", shown(r.Key), first)
		} else {
			seen[t.identity()] = i
		}
		if _, ok := c.d.Authorizers[r.Authorizer]; r.Authorizer != "" && !ok {
			c.problem(at+".authorizer", "%s is none of authorizers", shown(r.Authorizer))
		}
		c.authorization(at+".authorization", r)
		c.integration(at+".integration", &r.Integration, t)
	}
}

func (c *checker) authorization(at string, r *Route) {
	switch {
	case r.Authorization == "":
	case r.Authorization != AWSIAM:
		c.problem(at, "%s is not known; there is %s", shown(r.Authorization), AWSIAM)
	case c.d.Kind != REST:
		c.problem(at, "%s is served for REST APIs only", AWSIAM)
	case r.Authorizer != "":
		c.problem(at, "a route with an authorizer has no %s beside it", AWSIAM)
	}
}

func (c *checker) integration(at string, g *Integration, t *target) {
	most := maxRESTMillis
	if c.d.Kind == HTTP {
		most = maxHTTPMillis
	}
	if g.TimeoutMillis == 0 {
		g.TimeoutMillis = most
	}
	if g.TimeoutMillis < minMillis || g.TimeoutMillis > most {
		c.problem(at+".timeoutInMillis", "%d is outside %d..%d", g.TimeoutMillis, minMillis, most)
	}
	if !c.integrationType(at, g) {
		return
	}
	switch v2 := c.d.Kind == HTTP && g.Type == AWSProxy; {
	case v2 && g.Payload != "1.0" && g.Payload != "2.0":
		c.problem(at+".payloadFormatVersion", `want "1.0" or "2.0", got %s`, shown(g.Payload))
	case !v2 && g.Payload != "":
		c.problem(at+".payloadFormatVersion", "only %s of an HTTP API has one", AWSProxy)
	}
	if _, err := c.d.requestMappings(g, t); err != nil {
		c.problem(at+".requestParameters", "%v", err)
	}
	if _, err := c.d.responseMappings(g); err != nil {
		c.problem(at+".responseParameters", "%v", err)
	}
}

// integrationType checks the type of an integration, and the settings that the type needs. It returns false if there is
// no such type.
func (c *checker) integrationType(at string, g *Integration) bool {
	switch g.Type {
	case HTTPProxy:
		if err := checkURL(g.URL); err != nil {
			c.problem(at+".url", "%v", err)
		}
	case AWSProxy:
		if g.Function == "" {
			c.problem(at+".function", "missing")
		}
	case Echo:
		if err := checkURL(g.URL); err != nil && g.URL != "" {
			c.problem(at+".url", "%v", err)
		}
	case Mock:
		if g.StatusCode = cmp.Or(g.StatusCode, "200"); !isStatus(g.StatusCode) {
			c.problem(at+".statusCode", "%s is not a status of 200 to 599", shown(g.StatusCode))
		}
	default:
		c.problem(at+".type", "%s is not known; there are %s, %s, %s and %s", shown(g.Type), HTTPProxy, AWSProxy, Mock,
			Echo)
		return false
	}
	c.integrationMembers(at, g)
	switch {
	case c.d.Kind == HTTP && g.Type == Mock:
		c.problem(at+".type", "an HTTP API has no %s", Mock)
	case c.d.Kind == WebSocket && g.Type != Mock:
		c.problem(at+".type", "only %s is served for a WebSocket API: connections are authorized, and no messages "+
			"passed", Mock)
	}
	return true
}

// integrationMembers reports a setting that has no effect on an integration of this type.
func (c *checker) integrationMembers(at string, g *Integration) {
	proxies := g.Type == HTTPProxy || g.Type == Echo
	switch {
	case g.URL != "" && !proxies:
		c.problem(at+".url", "only %s and %s have one", HTTPProxy, Echo)
	case g.Method != "" && !proxies:
		c.problem(at+".httpMethod", "only %s and %s have one", HTTPProxy, Echo)
	case g.Method != "" && !slices.Contains(methods, g.Method):
		c.problem(at+".httpMethod", "%s is none of %s", shown(g.Method), strings.Join(methods, ", "))
	case g.StatusCode != "" && g.Type != Mock:
		c.problem(at+".statusCode", "only %s has one", Mock)
	case g.Function != "" && g.Type != AWSProxy:
		c.problem(at+".function", "only %s has one", AWSProxy)
	}
}

var placeholder = regexp.MustCompile(`\{([A-Za-z0-9._-]+)\}`)

func checkURL(s string) error {
	u, err := url.Parse(placeholder.ReplaceAllString(s, "x"))
	if err != nil {
		return fmt.Errorf("%s is not a URL", shown(s))
	}
	return front.CheckUpstream(u)
}

func (c *checker) responses() {
	if c.d.Kind != REST && len(c.d.Responses) > 0 {
		c.problem("gatewayResponses", "a %s API has none: its answers cannot be changed", c.d.Kind)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(c.d.Responses)) {
		g, at := c.d.Responses[name], "gatewayResponses."+name
		if _, ok := failures[name]; !ok && name != default4XX && name != default5XX {
			c.problem(at, "not known, or for what is not served here; there are %s, %s, %s", default4XX, default5XX,
				strings.Join(slices.Sorted(maps.Keys(failures)), ", "))
			continue
		}
		if g.StatusCode != "" && !isStatus(g.StatusCode) {
			c.problem(at+".statusCode", "%s is not a status of 200 to 599", shown(g.StatusCode))
		}
		if _, err := gatewayHeaders(g.Parameters); err != nil {
			c.problem(at+".responseParameters", "%v", err)
		}
		for _, contentType := range slices.Sorted(maps.Keys(g.Templates)) {
			if !strings.Contains(contentType, "/") || !sendable(contentType) {
				c.problem(at+".responseTemplates", "%s is not a content type", shown(contentType))
			}
			if _, err := parseTemplate(g.Templates[contentType]); err != nil {
				c.problem(at+".responseTemplates", "%s: %v", contentType, err)
			}
		}
	}
}

func isStatus(s string) bool {
	code, err := strconv.Atoi(s)
	return err == nil && len(s) == 3 && code >= 200 && code <= 599
}

// headerName returns the name of a header in canonical form; false if it is not a valid name.
func headerName(s string) (string, bool) {
	if s == "" || len(s) > 128 {
		return "", false
	}
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`()<>@,;:\"/[]?={}`, c) >= 0 {
			return "", false
		}
	}
	return http.CanonicalHeaderKey(s), true
}

// sendable reports whether a value may be sent in a header: whether it has no line end and no other control character.
func sendable(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
