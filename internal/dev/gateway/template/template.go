// Package template reads a stage of an API from a CloudFormation template, as `cdk synth` writes it, so that the local
// gateway serves what will be deployed.
//
// It refuses everything that it does not know: a type of resource of API Gateway, a property, a function of the
// template's language. The problem names the logical id and the property. If such a setting were ignored, the local
// gateway would answer otherwise than the deployed API. The following is ignored, since it does not change the answer
// to a call:
//
//   - Description, Metadata, Outputs, Rules, and Conditions and Mappings that nothing of the API uses; Metadata,
//     DeletionPolicy and UpdateReplacePolicy of a resource.
//   - Resources of other services: see ignoredServices. A usage plan for the API is refused, and so is a firewall that
//     is associated with it.
//   - AWS::ApiGateway::Account, Model and RequestValidator, and domain names. A method that uses a validator is
//     refused.
//   - Names, descriptions, tags, settings of logs, traces and metrics, throttling, request models, and whether an API
//     is regional or at the edge.
//   - All routes of a WebSocket API but $connect, and its integrations, since the local gateway passes no messages.
//
// It also reports three mistakes that API Gateway only notices when a client calls, or never: a method or gateway
// response is not part of the deployment that the stage serves; API Gateway may not invoke an authorizer; a mapping
// names a header that is not declared.
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

// Options select a stage of the template, and set what the template does not contain.
type Options struct {
	API   string // logical id of the API; "" if the template has only one
	Stage string // name of the stage; "" if the API has only one
	// Region is the value of AWS::Region. The default is the region in the template's ARNs, or else "us-east-1".
	// Signatures of callers must be for this region.
	Region string
	// Account is the value of AWS::AccountId. The default is the account in the template's ARNs, or else
	// "000000000000".
	Account string
	// Targets maps the beginning of the URL of an integration to the URL to call instead, such as
	// "https://shop.example.com/v1" to "http://127.0.0.1:9000". A beginning ends with a whole segment of the path; the
	// longest one that matches applies. A URL without a match is not called: the route is an ECHO of the request.
	Targets map[string]string
}

// Is reports whether a text is a template and not a description: a template is an object with Resources.
func Is(data []byte) bool {
	var top struct {
		Resources map[string]json.RawMessage `json:"Resources"`
	}
	return json.Unmarshal(data, &top) == nil && top.Resources != nil
}

// Parse reads a template. name is the name of the file, for the *[stage.Error] that Parse returns; each problem names
// the logical id and the property. The description names a function by its FunctionName, or by its logical id if the
// FunctionName is not a text; a function of another stack by the name in its ARN. The id of the API is its logical id.
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
		r.addProblemsOf(d.Check())
	}
	if len(r.problems) > 0 {
		slices.SortStableFunc(r.problems, func(a, b stage.Problem) int { return a.Line - b.Line })
		return nil, &stage.Error{Problems: r.problems}
	}
	return d, nil
}

// homes matches the region and the account in the ARNs of APIs and functions, and the region in the URIs with which API
// Gateway invokes a function.
var homes = regexp.MustCompile(`:(?:execute-api|lambda):([a-z]{2,}(?:-[a-z]+)+-[0-9]+):([0-9]{12}` +
	`):|:apigateway:([a-z]{2,}(?:-[a-z]+)+-[0-9]+):lambda:`)

// home returns the region and the account in the template's ARNs; "" if ARNs contradict each other, or there are none.
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

// reader converts one template to a description.
type reader struct {
	file      string
	data      []byte
	o         Options
	root      *node
	resources map[string]*resource
	order     []*resource
	api       *resource
	places    map[string]at // path of a value in the description → its place in the template
	problems  []stage.Problem
	steps     int // made by resolve so far
}

// at is a place in the template.
type at struct {
	n    *node
	path string
}

// resource is a resource of the template.
type resource struct {
	id, typ string
	node    *node
	refs    []string // logical ids that it depends on
}

func (res *resource) hasType(types ...string) bool { return slices.Contains(types, res.typ) }

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

// addProblemsOf adds the problems that the description's own check found, at their places in the template.
func (r *reader) addProblemsOf(err error) {
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
			r.problem(root.fields[name], name, "not a section of a template; the sections are %s",
				strings.Join(topLevel, ", "))
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
		r.checkType(res)
	}
}

// ignoredServices are services whose resources do not change what API Gateway answers. Lambda functions do, but the
// local gateway gets their programs in another way.
var ignoredServices = []string{"AppConfig", "ApplicationAutoScaling", "CDK", "CloudTrail", "CloudWatch", "DynamoDB",
	"EC2", "ElastiCache", "Events", "IAM", "KMS", "Kinesis", "KinesisFirehose", "Lambda", "Logs", "S3", "SNS", "SQS",
	"SSM", "Scheduler", "SecretsManager", "StepFunctions", "XRay"}

// ignoredTypes are types of resources of API Gateway and its firewall that do not change an answer by themselves.
var ignoredTypes = []string{restType("Account"), restType("Model"), restType("RequestValidator"),
	restType("DomainName"), v2Type("DomainName"), v2Type("Model"), "AWS::WAFv2::WebACL"}

// association is the type of a resource that puts a firewall in front of a stage: see checkFirewall.
const association = "AWS::WAFv2::WebACLAssociation"

// read are the types of resources that a description is made from.
var read = []string{restType("RestApi"), restType("Resource"), restType("Method"), restType("Authorizer"),
	restType("GatewayResponse"), restType("Deployment"), restType("Stage"), v2Type("Api"), v2Type("Route"),
	v2Type("Integration"), v2Type("Authorizer"), v2Type("Deployment"), v2Type("Stage"),
	v2Type("IntegrationResponse"), v2Type("RouteResponse")}

func restType(name string) string { return "AWS::ApiGateway::" + name }

func v2Type(name string) string { return "AWS::ApiGatewayV2::" + name }

// checkType reports a problem for a type of resource that is not known, and for an attribute of a resource, such as
// Condition, that the local gateway does not evaluate.
func (r *reader) checkType(res *resource) {
	parts := strings.Split(res.typ, "::")
	if len(parts) == 3 && parts[0] == "AWS" && slices.Contains(ignoredServices, parts[1]) ||
		slices.Contains(ignoredTypes, res.typ) {
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

// of returns the resources of a type that belong to the API. property is the property that names the API. If it cannot
// be resolved, of reports a problem, because the resource may belong to the API.
func (r *reader) of(typ, property string) (all []*resource) {
	for _, res := range r.order {
		if !res.hasType(typ) || r.api == nil {
			continue
		}
		n := res.properties().field(property)
		if n.absent() {
			r.problem(res.node, res.path()+".Properties."+property, "missing: it names the API of the resource")
			continue
		}
		id, err := r.resolve(n)
		if err != nil {
			r.problem(n, res.path()+".Properties."+property, "%v", err)
			continue
		}
		if id == r.api.id {
			all = append(all, res)
		}
	}
	return all
}

// description makes the description of the selected API.
func (r *reader) description() *stage.Description {
	d := &stage.Description{Region: r.o.Region, Account: r.o.Account, Authorizers: make(map[string]stage.Authorizer)}
	var names []string
	for _, res := range r.order {
		if !res.hasType(restType("RestApi"), v2Type("Api")) {
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
		r.problem(nil, "Resources", "the template has no API, neither %s nor %s", restType("RestApi"), v2Type("Api"))
		return d
	case r.o.API == "" && len(names) > 1:
		r.problem(nil, "Resources", "the template has %d APIs; select one of %s", len(names),
			strings.Join(names, ", "))
		return d
	case r.api == nil:
		r.problem(nil, "Resources", "the template has no API %s; its APIs are %s", shown(r.o.API),
			strings.Join(names, ", "))
		return d
	}
	d.API = r.api.id
	r.checkFirewall()
	if r.api.hasType(restType("RestApi")) {
		r.readREST(d)
	} else {
		r.readV2(d)
	}
	return d
}

// checkFirewall reports a problem if the template puts a firewall in front of the selected API.
func (r *reader) checkFirewall() {
	for _, res := range r.order {
		if !res.hasType(association) {
			continue
		}
		p := r.properties(res)
		if strings.Contains(p.text("ResourceArn")+"/", "/restapis/"+r.api.id+"/") {
			p.problem("ResourceArn", "the local gateway has no firewalls, and this one is in front of %s", r.api.id)
		}
	}
}

// pick returns the selected stage. stages holds the stages of the API by their names.
func (r *reader) pick(stages map[string]*resource) *resource {
	names := slices.Sorted(maps.Keys(stages))
	switch {
	case len(names) == 0:
		r.problem(r.api.node, r.api.path(), "the API has no stage in this template")
	case r.o.Stage == "" && len(names) > 1:
		r.problem(r.api.node, r.api.path(), "the API has %d stages; select one of %s", len(names),
			strings.Join(names, ", "))
	case r.o.Stage == "":
		return stages[names[0]]
	case stages[r.o.Stage] == nil:
		r.problem(r.api.node, r.api.path(), "the API has no stage %s; its stages are %s", shown(r.o.Stage),
			strings.Join(names, ", "))
	}
	return stages[r.o.Stage]
}

// deployed reports a problem for each resource that a deployment does not depend on: CloudFormation may create the
// deployment before that resource, and the deployment then does not contain it.
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
				r.problem(res.node, res.path(), "the deployment %s does not depend on this resource, so it may be "+
					"created before the resource and not contain it", deployment.id)
			}
		}
	}
}

// target returns the URL to call instead of url; false if Options.Targets has none.
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

// route appends a route to the description, and remembers its place in the template.
func (r *reader) route(d *stage.Description, res *resource, route stage.Route) {
	r.places["routes["+strconv.Itoa(len(d.Routes))+"]"] = at{res.node, res.path()}
	d.Routes = append(d.Routes, route)
}
