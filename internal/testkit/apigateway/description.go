package apigateway

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Kind is the kind of an API.
type Kind string

// The kinds.
const (
	REST      Kind = "REST"
	HTTP      Kind = "HTTP"
	WebSocket Kind = "WebSocket"
)

// Description is what the model serves: one stage of one API, with its routes, authorizers and responses. The fields
// and the values of types and mappings have the names that API Gateway gives them.
type Description struct {
	Kind        Kind                       `yaml:"kind"`
	API         string                     `yaml:"api"`         // id of the API; default "local"
	Stage       string                     `yaml:"stage"`       // default "$default" for an HTTP API, else "dev"
	Region      string                     `yaml:"region"`      // default "us-east-1"
	Account     string                     `yaml:"account"`     // default "000000000000"
	Authorizers map[string]Authorizer      `yaml:"authorizers"` // by name
	Routes      []Route                    `yaml:"routes"`
	Responses   map[string]GatewayResponse `yaml:"gatewayResponses"` // by type; REST APIs only
}

// Authorizer is a Lambda authorizer.
type Authorizer struct {
	Function string `yaml:"function"`              // a name in Config.Functions
	Payload  string `yaml:"payloadFormatVersion"`  // HTTP APIs only: "1.0" or "2.0"; required
	Simple   bool   `yaml:"enableSimpleResponses"` // only HTTP APIs with payload 2.0
	// Type must be "REQUEST" or "", and IdentitySource empty: Sluice's authorizer sees the whole request, also one
	// without a credential.
	Type           string   `yaml:"type"`
	IdentitySource []string `yaml:"identitySource"`
	// TTLSeconds is required and must be 0. API Gateway's default on REST APIs is to cache answers for 300 s.
	TTLSeconds *int `yaml:"resultTtlInSeconds"`
}

// Route says what happens to the requests that match its key.
type Route struct {
	// Key is "GET /product/{id}" or "ANY /{proxy+}"; for HTTP APIs also "$default"; for WebSocket APIs "$connect".
	Key        string `yaml:"route"`
	Authorizer string `yaml:"authorizer"` // a name in Authorizers; "" if there is none
	// Authorization may be "AWS_IAM": see [Config.Callers]. If it is "", the Authorizer decides; if both are "",
	// everybody may call the route.
	Authorization string      `yaml:"authorization"`
	Integration   Integration `yaml:"integration"`
}

// AWSIAM is the Authorization of a route that takes signed calls only.
const AWSIAM = "AWS_IAM"

// The types of integrations. ECHO is not a type of API Gateway: it answers with the request that an HTTP_PROXY would
// have made.
const (
	HTTPProxy = "HTTP_PROXY"
	AWSProxy  = "AWS_PROXY"
	Mock      = "MOCK" // answers with a status and no body
	Echo      = "ECHO"
)

// Integration describes the backend of a route.
type Integration struct {
	Type string `yaml:"type"`
	URL  string `yaml:"url"` // of an HTTP_PROXY. It may contain {name} for a path parameter
	// Method is the method of the request to an HTTP_PROXY. "" selects the client's method.
	Method     string `yaml:"httpMethod"`
	StatusCode string `yaml:"statusCode"`           // only MOCK: its status; default "200"
	Function   string `yaml:"function"`             // only AWS_PROXY: a name in Config.Functions
	Payload    string `yaml:"payloadFormatVersion"` // only AWS_PROXY of an HTTP API: "1.0" or "2.0"; required

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
	// Templates has the body by content type, of which only application/json is used. Only $context.NAME is replaced.
	Templates map[string]string `yaml:"responseTemplates"`
}

//go:embed builtin/*.yaml
var builtin embed.FS

// ReadBuiltin returns the text of an example, one for each kind of API; false if there is none of that name.
func ReadBuiltin(name string) ([]byte, bool) {
	data, err := builtin.ReadFile("builtin/" + name + ".yaml")
	return data, err == nil
}

// Parse reads a description, YAML or JSON. An unknown key is an error, since a test with a setting that is ignored
// would prove nothing. name is the name of the file, for the error.
func Parse(name string, data []byte) (*Description, error) {
	in := yaml.NewDecoder(bytes.NewReader(data))
	in.KnownFields(true)
	d := new(Description)
	err := in.Decode(d)
	if err == nil {
		err = d.Check()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return d, nil
}

// Functions returns the names of the functions of authorizers and of integrations.
func (d *Description) Functions() (authorizers, integrations []string) {
	for _, a := range d.Authorizers {
		authorizers = append(authorizers, a.Function)
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

const defaultStage = "$default"

// Prefix returns what the paths of all requests begin with: "/stage", or "" for the stage $default.
func (d *Description) Prefix() string {
	if d.Stage == defaultStage {
		return ""
	}
	return "/" + d.Stage
}

// Check fills in defaults. It refuses an authorizer whose answers would be cached, or which does not see every request.
// [New] calls it, too.
func (d *Description) Check() error {
	if d.Kind != REST && d.Kind != HTTP && d.Kind != WebSocket {
		return fmt.Errorf("kind %q is not REST, HTTP or WebSocket", d.Kind)
	}
	stage := "dev"
	if d.Kind == HTTP {
		stage = defaultStage
	}
	d.API, d.Stage = cmp.Or(d.API, "local"), cmp.Or(d.Stage, stage)
	d.Region, d.Account = cmp.Or(d.Region, "us-east-1"), cmp.Or(d.Account, "000000000000")
	for _, name := range slices.Sorted(maps.Keys(d.Authorizers)) {
		if a := d.Authorizers[name]; a.TTLSeconds == nil || *a.TTLSeconds != 0 ||
			cmp.Or(a.Type, "REQUEST") != "REQUEST" || len(a.IdentitySource) > 0 {
			return fmt.Errorf("authorizer %s: want a resultTtlInSeconds of 0, the type REQUEST and no identitySource, "+
				"so that it is asked about every request", name)
		}
	}
	for i := range d.Routes {
		r := &d.Routes[i]
		if _, ok := d.Authorizers[r.Authorizer]; r.Authorizer != "" && !ok {
			return fmt.Errorf("route %s: there is no authorizer %q", r.Key, r.Authorizer)
		}
	}
	return nil
}
