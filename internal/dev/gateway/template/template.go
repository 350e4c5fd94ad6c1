// Package template reads a stage of an API from a CloudFormation template, as `cdk synth` writes it, so that the local
// gateway serves what will be deployed.
//
// Whatever it does not know (a type of resource of API Gateway, a property, a function of the template's language) is
// refused by logical id and name: a setting that is passed over would make the stand-in lie. What has no bearing on the
// answer to a call is passed over by name:
//
//   - Of the template: Description, Metadata, Outputs, Rules, and Conditions and Mappings that nothing of the API uses. Of a
//     resource: Metadata, DeletionPolicy, UpdateReplacePolicy.
//   - Resources of services that stand beside an API: see beside. A usage plan in front of it is refused, and a firewall where it is associated with this very API.
//   - AWS::ApiGateway::Account, Model and RequestValidator (a method that uses a validator is refused), and domain names.
//   - Names, descriptions, tags, settings of logs, traces and metrics, rates and bursts of throttling, request models, whether an API is regional or at the edge.
//   - Of a WebSocket API: every route but $connect and every integration, since the local gateway passes no messages.
//
// Beyond that it holds three things that API Gateway finds out only in front of a client, or never: that every method
// and gateway response is part of the deployment which the stage serves, that API Gateway may invoke each authorizer,
// and that a header which a mapping names is declared.
package template

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicelimits/sluice/internal/dev/gateway/stage"
)

// Options say what a template leaves open.
type Options struct {
	API   string // logical id of the API; "" where the template has one
	Stage string // name of the stage; "" where the API has one
	// AWS::Region; default the one that the template's ARNs name, else "us-east-1"; a signature is for it
	Region  string
	Account string // AWS::AccountId; default the one that they name, else "000000000000"

	// Targets says where URLs of integrations lead on this machine, by what they begin with, up to the end of a
	// segment, as in "https://shop.example.com/v1" to "http://127.0.0.1:9000". The longest that fits applies. A URL
	// that none fits is not asked: the route is an ECHO of the request that would have been made.
	Targets map[string]string
}

// Is reports whether a text is a template, which has Resources at its top, rather than a description.
func Is(data []byte) bool {
	var top struct {
		Resources map[string]json.RawMessage `json:"Resources"`
	}
	return json.Unmarshal(data, &top) == nil && top.Resources != nil
}

// Parse reads a template. name is the file's, for the *[stage.Error] that it returns, whose problems name the logical
// id and the property. A function in the description is called by its FunctionName where that is plain text, else by
// its logical id; one of another stack by the name in its ARN. The API's id is its logical id.
func Parse(name string, data []byte, o Options) (*stage.Description, error) {
	root, err := readTree(data)
	if err != nil {
		return nil, &stage.Error{Problems: []stage.Problem{{File: name, Message: err.Error()}}}
	}
	r := &reader{file: name, data: data, o: o, resources: make(map[string]*resource), places: make(map[string]at)}
	region, account := home(data)
	r.o.Region, r.o.Account = cmp.Or(r.o.Region, region, "us-east-1"), cmp.Or(r.o.Account, account, "000000000000")
	r.top(root)
	d := r.description()
	if len(r.problems) == 0 {
		r.take(d.Check())
	}
	if len(r.problems) > 0 {
		slices.SortStableFunc(r.problems, func(a, b stage.Problem) int { return a.Line - b.Line })
		return nil, &stage.Error{Problems: r.problems}
	}
	return d, nil
}

// homes are the region and account in ARNs of what is called, and the region alone in those by which API Gateway calls
// it.
var homes = regexp.MustCompile(`:(?:execute-api|lambda):([a-z]{2,}(?:-[a-z]+)+-[0-9]+):([0-9]{12}` +
	`):|:apigateway:([a-z]{2,}(?:-[a-z]+)+-[0-9]+):lambda:`)

// home is where the template's ARNs say that it is for; "" where they do not agree, or do not say: a stack may be for
// any.
func home(data []byte) (region, account string) {
	agrees := func(with *string, found []byte) bool {
		if *with == "" {
			*with = string(found)
		}
		return len(found) == 0 || *with == string(found)
	}
	for _, m := range homes.FindAllSubmatch(data, -1) {
		if !agrees(&region, m[1]) || !agrees(&account, m[2]) || !agrees(&region, m[3]) {
			return "", ""
		}
	}
	return region, account
}

// reader is one template on its way to a description.
type reader struct {
	file      string
	data      []byte
	o         Options
	root      *node
	resources map[string]*resource
	order     []*resource
	api       *resource
	places    map[string]at // of what the description has, by its path there
	problems  []stage.Problem
	steps     int // of resolving, so far
}

// at is a place in the template.
type at struct {
	n    *node
	path string
}

// resource is one of the template's.
type resource struct {
	id, typ string
	node    *node
	refs    []string // logical ids that it depends on
}

func (res *resource) is(types ...string) bool { return slices.Contains(types, res.typ) }

func (res *resource) path() string { return "Resources." + res.id }

func (res *resource) properties() *node { return res.node.field("Properties") }

func (r *reader) problem(n *node, path, format string, args ...any) {
	if len(r.problems) >= maxProblems {
		return
	}
	p := stage.Problem{File: r.file, Path: path, Message: fmt.Sprintf(format, args...)}
	if n != nil {
		p.Line, p.Column = place(r.data, n.offset)
	}
	r.problems = append(r.problems, p)
}

// take translates the problems that a description's own check found.
func (r *reader) take(err error) {
	if err == nil {
		return
	}
	e, ok := err.(*stage.Error) //nolint:errorlint // Check's own, not wrapped
	if !ok {
		r.problem(nil, "", "%v", err)
		return
	}
	for _, p := range e.Problems {
		path, rest := p.Path, ""
		for {
			if place, ok := r.places[path]; ok {
				message := p.Message
				if rest != "" {
					message = rest + ": " + message
				}
				r.problem(place.n, place.path, "%s", message)
				break
			}
			cut := strings.LastIndexAny(path, ".[")
			if cut < 0 {
				r.problem(nil, "", "%s", p.String())
				break
			}
			path, rest = path[:cut], strings.TrimPrefix(p.Path[cut:], ".")
		}
	}
}

// topLevel are the sections of a template.
var topLevel = []string{"AWSTemplateFormatVersion", "Conditions", "Description", "Mappings", "Metadata", "Outputs",
	"Parameters", "Resources", "Rules"}

func (r *reader) top(root *node) {
	r.root = root
	if root.form != object {
		r.problem(root, "", "want an object, got %s", root.describe())
		return
	}
	for _, name := range root.names {
		if !slices.Contains(topLevel, name) {
			r.problem(root.fields[name], name, "not known; there are %s", strings.Join(topLevel, ", "))
		}
	}
	all := root.field("Resources")
	if all == nil || all.form != object {
		r.problem(all, "Resources", "want an object, got %s", all.describe())
		return
	}
	for _, id := range all.names {
		res := &resource{id: id, node: all.fields[id]}
		typ := res.node.field("Type")
		if typ == nil || typ.form != text {
			r.problem(res.node, res.path()+".Type", "want a text, got %s", typ.describe())
			continue
		}
		if props := res.properties(); props != nil && props.form != object {
			r.problem(props, res.path()+".Properties", "want an object, got %s", props.describe())
			continue
		}
		res.typ = typ.text
		res.refs = references(res.node, nil)
		r.resources[id], r.order = res, append(r.order, res)
		r.known(res)
	}
}

// beside are services whose resources stand beside an API: nothing of them changes what API Gateway answers, but for
// the functions that are invoked, which the local gateway is given.
var beside = []string{"AppConfig", "ApplicationAutoScaling", "CDK", "CloudTrail", "CloudWatch", "DynamoDB", "EC2",
	"ElastiCache", "Events", "IAM", "KMS",
	"Kinesis", "KinesisFirehose", "Lambda", "Logs", "S3", "SNS", "SQS", "SSM", "Scheduler", "SecretsManager",
	"StepFunctions", "XRay"}

// passedOver are types of API Gateway that have no bearing by themselves.
var passedOver = []string{restType("Account"), restType("Model"), restType("RequestValidator"), restType("DomainName"),
	v2Type("DomainName"), v2Type("Model"),
	"AWS::WAFv2::WebACL"}

// association puts a firewall in front of a stage: see walled.
const association = "AWS::WAFv2::WebACLAssociation"

// read are those of which a description is made.
var read = []string{restType("RestApi"), restType("Resource"), restType("Method"), restType("Authorizer"),
	restType("GatewayResponse"),
	restType("Deployment"), restType("Stage"), v2Type("Api"), v2Type("Route"), v2Type("Integration"),
	v2Type("Authorizer"),
	v2Type("Deployment"), v2Type("Stage"), v2Type("IntegrationResponse"), v2Type("RouteResponse")}

func restType(name string) string { return "AWS::ApiGateway::" + name }

func v2Type(name string) string { return "AWS::ApiGatewayV2::" + name }

// known refuses types that it does not know, and what may stand beside a resource's properties and is not evaluated.
func (r *reader) known(res *resource) {
	parts := strings.Split(res.typ, "::")
	if len(parts) == 3 && parts[0] == "AWS" && slices.Contains(beside, parts[1]) ||
		slices.Contains(passedOver, res.typ) {
		return
	}
	if !slices.Contains(read, res.typ) && res.typ != association {
		r.problem(res.node.field("Type"), res.path()+".Type", "%s is not known to the local gateway", shown(res.typ))
		return
	}
	for _, name := range res.node.names {
		switch name {
		case "Type", "Properties", "DependsOn", "Metadata", "DeletionPolicy", "UpdateReplacePolicy":
		default:
			r.problem(res.node.fields[name], res.path()+"."+name, "not known to the local gateway")
		}
	}
}

// of lists the resources of a type that belong to the API, by the property that names it.
func (r *reader) of(typ, property string) (all []*resource) {
	for _, res := range r.order {
		if res.is(typ) && r.api != nil {
			if n := res.properties().field(property); n != nil && r.quiet(n) == r.api.id {
				all = append(all, res)
			}
		}
	}
	return all
}

// description makes the description of the API that is meant.
func (r *reader) description() *stage.Description {
	d := &stage.Description{Region: r.o.Region, Account: r.o.Account, Authorizers: make(map[string]stage.Authorizer)}
	var names []string
	for _, res := range r.order {
		if !res.is(restType("RestApi"), v2Type("Api")) {
			continue
		}
		names = append(names, res.id)
		if r.o.API == res.id || r.o.API == "" {
			r.api = res
		}
	}
	switch {
	case len(r.problems) > 0 && r.api == nil:
		return d
	case len(names) == 0:
		r.problem(nil, "Resources", "there is no API: one that is only named by its id has its routes elsewhere")
		return d
	case r.o.API == "" && len(names) > 1:
		r.problem(nil, "Resources", "there are %d APIs; say which (--api-id): %s", len(names),
			strings.Join(names, ", "))
		return d
	case r.api == nil:
		r.problem(nil, "Resources", "there is no API %s; there are %s", shown(r.o.API), strings.Join(names, ", "))
		return d
	}
	d.API = r.api.id
	r.walled()
	if r.api.is(restType("RestApi")) {
		r.rest(d)
	} else {
		r.v2(d)
	}
	return d
}

// walled refuses a firewall in front of the API. One in front of another is nothing to it.
func (r *reader) walled() {
	for _, res := range r.order {
		if !res.is(association) {
			continue
		}
		p := r.properties(res)
		if strings.Contains(p.text("ResourceArn")+"/", "/restapis/"+r.api.id+"/") {
			p.problem("ResourceArn", "the local gateway has no firewall, and this one stands in front of %s", r.api.id)
		}
	}
}

// stages picks the stage, among those by name.
func (r *reader) pick(stages map[string]*resource) *resource {
	names := slices.Sorted(maps.Keys(stages))
	switch {
	case len(names) == 0:
		r.problem(r.api.node, r.api.path(), "the API has no stage in this template")
	case r.o.Stage == "" && len(names) > 1:
		r.problem(r.api.node, r.api.path(), "the API has %d stages; say which (--api-stage): %s", len(names),
			strings.Join(names, ", "))
	case r.o.Stage == "":
		return stages[names[0]]
	case stages[r.o.Stage] == nil:
		r.problem(r.api.node, r.api.path(), "the API has no stage %s; there are %s", shown(r.o.Stage),
			strings.Join(names, ", "))
	}
	return stages[r.o.Stage]
}

// deployed holds that a deployment takes in what is to be served: CloudFormation may make it first of what it does not
// depend on.
func (r *reader) deployed(deployment *resource, parts ...[]*resource) {
	reached := make(map[string]bool)
	var visit func(id string)
	visit = func(id string) {
		res := r.resources[id]
		if res == nil || reached[id] {
			return
		}
		reached[id] = true
		for _, next := range res.refs {
			visit(next)
		}
	}
	visit(deployment.id)
	for _, list := range parts {
		for _, res := range list {
			if !reached[res.id] {
				r.problem(res.node, res.path(), "%s does not depend on it, and may be made before it and without it",
					deployment.id)
			}
		}
	}
}

// target says where a URL leads on this machine; false where no one said.
func (r *reader) target(url string) (string, bool) {
	best, to := "", ""
	for from, target := range r.o.Targets {
		rest, ok := strings.CutPrefix(url, strings.TrimSuffix(from, "/"))
		if ok && (rest == "" || rest[0] == '/' || rest[0] == '?') && len(from) >= len(best) {
			best, to = from, strings.TrimSuffix(target, "/")+rest
		}
	}
	return to, best != ""
}

// routeAt notes where a route stands, and appends it.
func (r *reader) route(d *stage.Description, res *resource, route stage.Route) {
	r.places["routes["+strconv.Itoa(len(d.Routes))+"]"] = at{res.node, res.path()}
	d.Routes = append(d.Routes, route)
}
