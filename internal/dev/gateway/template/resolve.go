package template

//lint:file-ignore ST1005 the errors begin with the names of the language's functions

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// noValue is the pseudo parameter that makes CloudFormation leave a property out.
const noValue = "AWS::NoValue"

// absent reports whether a value is missing, or is a Ref to noValue.
func (n *node) absent() bool {
	return n == nil || n.form == object && len(n.names) == 1 && n.names[0] == "Ref" && n.fields["Ref"].text == noValue
}

// references appends to found the logical ids that a value names, in DependsOn or by Ref, Fn::GetAtt and Fn::Sub.
func references(n *node, found []string) []string {
	for _, item := range n.items {
		found = references(item, found)
	}
	for _, name := range n.names {
		value := n.fields[name]
		switch {
		case name == "Ref" && value.form == text:
			found = append(found, value.text)
		case name == "Fn::GetAtt":
			id, _, _ := getAtt(value)
			found = append(found, id)
		case name == "Fn::Sub":
			for _, v := range subVariables(value) {
				id, _, _ := strings.Cut(v, ".")
				found = append(found, id)
			}
			found = references(value, found)
		case name == "DependsOn" && value.form == text:
			found = append(found, value.text)
		case name == "DependsOn":
			for _, item := range value.items {
				found = append(found, item.text)
			}
		default:
			found = references(value, found)
		}
	}
	return found
}

// getAtt parses both forms of Fn::GetAtt: ["Id", "Attribute"] and "Id.Attribute".
func getAtt(n *node) (id, attribute string, ok bool) {
	switch {
	case n.form == text:
		return strings.Cut(n.text, ".")
	case n.form == list && len(n.items) == 2 && n.items[0].form == text && n.items[1].form == text:
		return n.items[0].text, n.items[1].text, true
	}
	return "", "", false
}

// subVariables returns the names of all ${NAME} in the text of a Fn::Sub.
func subVariables(n *node) (names []string) {
	if n.form == list && len(n.items) > 0 {
		n = n.items[0]
	}
	_, _ = substitute(n.text, func(name string) (string, error) {
		names = append(names, name)
		return "", nil
	})
	return names
}

// substitute replaces ${name} by its value, and ${!name} by ${name}.
func substitute(s string, value func(name string) (string, error)) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(s, "${")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			return "", fmt.Errorf("Fn::Sub: %s is not closed", shown("${"+rest))
		}
		if literal, ok := strings.CutPrefix(name, "!"); ok {
			b.WriteString("${" + literal + "}")
		} else {
			v, err := value(name)
			if err != nil {
				return "", err
			}
			b.WriteString(v)
		}
		s = after
	}
}

// resolve returns the text of a scalar, or of a function of the template's language such as Ref.
func (r *reader) resolve(n *node) (string, error) { return r.resolveAt(n, 0) }

// Bounds of resolving: a few lines of a template can expand to billions of steps.
const (
	maxHops  = 16      // functions inside each other until a value is a text; real templates have two or three
	maxSteps = 100_000 // of a whole template
)

func (r *reader) resolveAt(n *node, hops int) (string, error) {
	r.steps++
	switch {
	case hops > maxHops:
		return "", fmt.Errorf("the value refers to itself, or needs more than %d references to resolve", maxHops)
	case r.steps > maxSteps:
		return "", fmt.Errorf("the template needs more than %d steps to resolve its references", maxSteps)
	case n.form == text || n.form == number || n.form == boolean:
		return n.text, nil
	case n.form != object || len(n.names) != 1:
		return "", fmt.Errorf("want a text, got %s", n.describe())
	}
	name, value := n.names[0], n.fields[n.names[0]]
	switch name {
	case "Ref":
		if value.form != text {
			return "", fmt.Errorf("Ref: want a text, got %s", value.describe())
		}
		return r.ref(value.text, hops)
	case "Fn::GetAtt":
		id, attribute, ok := getAtt(value)
		if !ok {
			return "", fmt.Errorf("Fn::GetAtt: want an id and an attribute, got %s", value.describe())
		}
		return r.attribute(id, attribute, hops)
	case "Fn::Join":
		return r.join(value, hops)
	case "Fn::Sub":
		return r.sub(value, hops)
	}
	return "", fmt.Errorf("%s is not known to the local gateway, which knows Ref, Fn::GetAtt, Fn::Join and Fn::Sub",
		shown(name))
}

// quiet resolves a value whose problems are reported elsewhere. It returns "" for a value that cannot be resolved.
func (r *reader) quiet(n *node) string {
	s, err := r.resolve(n)
	if err != nil {
		return ""
	}
	return s
}

func (r *reader) pseudo(name string) (string, bool) {
	switch name {
	case "AWS::Region":
		return r.o.Region, true
	case "AWS::AccountId":
		return r.o.Account, true
	case "AWS::Partition":
		return "aws", true
	case "AWS::URLSuffix":
		return "amazonaws.com", true
	case "AWS::StackName":
		return "stack", true
	}
	return "", false
}

// ref returns the value of a Ref. For an API, an authorizer and similar resources it is the logical id, in place of the
// id that a deployment would create.
func (r *reader) ref(name string, hops int) (string, error) {
	if v, ok := r.pseudo(name); ok {
		return v, nil
	}
	if p := r.root.field("Parameters").field(name); p != nil {
		return parameter(name, p)
	}
	res := r.resources[name]
	switch {
	case res == nil:
		return "", fmt.Errorf("Ref: the template has no resource and no parameter %s", shown(name))
	case res.hasType("AWS::Lambda::Function"):
		return r.functionName(res, hops), nil
	case res.hasType("AWS::Lambda::Alias", "AWS::Lambda::Version"):
		return r.qualified(res, hops)
	case res.hasType(restType("Stage"), v2Type("Stage")):
		if n := res.properties().field("StageName"); n != nil {
			return r.resolveAt(n, hops+1)
		}
		return "", fmt.Errorf("Ref: the stage %s has no StageName", shown(name))
	case res.hasType(read...):
		return res.id, nil
	}
	return "", fmt.Errorf("Ref: %s is a %s, whose Ref the local gateway does not know", shown(name), res.typ)
}

// parameter returns the default of a parameter. The local gateway knows no other value of it.
func parameter(name string, p *node) (string, error) {
	kind, value := p.field("Type"), p.field("Default")
	switch {
	case kind == nil || kind.form != text || kind.text != "String" && kind.text != "Number":
		return "", fmt.Errorf("Ref: the parameter %s is a %s, and the local gateway only knows String and Number",
			shown(name), kind.describe())
	case value == nil || value.form == list || value.form == object || value.form == null:
		return "", fmt.Errorf("Ref: the parameter %s has no default, and the local gateway cannot be given a value",
			shown(name))
	}
	return value.text, nil
}

func (r *reader) attribute(id, attribute string, hops int) (string, error) {
	res := r.resources[id]
	switch {
	case res == nil:
		return "", fmt.Errorf("Fn::GetAtt: the template has no resource %s", shown(id))
	case res.hasType("AWS::Lambda::Function") && attribute == "Arn":
		return r.functionARN(r.functionName(res, hops)), nil
	case res.hasType("AWS::Lambda::Alias") && (attribute == "AliasArn" || attribute == "Arn"),
		res.hasType("AWS::Lambda::Version") && attribute == "FunctionArn":
		return r.qualified(res, hops)
	case res.hasType(restType("RestApi")) && attribute == "RootResourceId":
		return res.id + "/", nil
	case res.hasType(restType("RestApi")) && attribute == "RestApiId",
		res.hasType(v2Type("Api")) && attribute == "ApiId",
		res.hasType(restType("Authorizer"), v2Type("Authorizer")) && attribute == "AuthorizerId",
		res.hasType(restType("Resource")) && attribute == "ResourceId",
		res.hasType(restType("Deployment")) && attribute == "DeploymentId", res.hasType(v2Type("Integration")) &&
			attribute == "IntegrationId":
		return res.id, nil
	}
	return "", fmt.Errorf("Fn::GetAtt: %s of %s, a %s, is not known to the local gateway", shown(attribute), shown(id),
		res.typ)
}

// functionName returns the FunctionName of a function, or its logical id if the name is missing or not a text.
func (r *reader) functionName(res *resource, hops int) string {
	if n := res.properties().field("FunctionName"); !n.absent() {
		if s, err := r.resolveAt(n, hops+1); err == nil {
			return s
		}
	}
	return res.id
}

func (r *reader) functionARN(name string) string {
	return "arn:aws:lambda:" + r.o.Region + ":" + r.o.Account + ":function:" + name
}

// qualified returns the ARN of an alias or version.
func (r *reader) qualified(res *resource, hops int) (string, error) {
	qualifier := "1"
	n := res.properties().field("FunctionName")
	if n == nil {
		return "", fmt.Errorf("%s has no FunctionName", shown(res.id))
	}
	function, err := r.resolveAt(n, hops+1)
	if err != nil {
		return "", err
	}
	if alias := res.properties().field("Name"); alias != nil && alias.form == text {
		qualifier = alias.text
	}
	if !strings.HasPrefix(function, "arn:") {
		function = r.functionARN(function)
	}
	return function + ":" + qualifier, nil
}

func (r *reader) join(n *node, hops int) (string, error) {
	if n.form != list || len(n.items) != 2 || n.items[0].form != text || n.items[1].form != list {
		return "", fmt.Errorf("Fn::Join: want a text and a list, got %s", n.describe())
	}
	parts := make([]string, 0, len(n.items[1].items))
	for _, item := range n.items[1].items {
		s, err := r.resolveAt(item, hops+1)
		if err != nil {
			return "", fmt.Errorf("Fn::Join: %w", err)
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, n.items[0].text), nil
}

func (r *reader) sub(n *node, hops int) (string, error) {
	format, own := n, (*node)(nil)
	if n.form == list && len(n.items) == 2 && n.items[1].form == object {
		format, own = n.items[0], n.items[1]
	}
	if format.form != text {
		return "", fmt.Errorf("Fn::Sub: want a text, or a text and an object, got %s", n.describe())
	}
	return substitute(format.text, func(name string) (string, error) {
		if v := own.field(name); v != nil {
			return r.resolveAt(v, hops+1)
		}
		if id, attribute, ok := strings.Cut(name, "."); ok {
			return r.attribute(id, attribute, hops+1)
		}
		return r.ref(name, hops+1)
	})
}

// lambda returns the name of the function in the URI of an integration or authorizer, or in an ARN.
func lambda(uri string) (string, error) {
	arn := uri
	if _, rest, ok := strings.Cut(uri, ":lambda:path/"); ok && strings.HasPrefix(uri, "arn:") &&
		strings.Contains(uri, ":apigateway:") {
		_, rest, _ = strings.Cut(rest, "/functions/")
		arn, ok = strings.CutSuffix(rest, "/invocations")
		if !ok {
			return "", fmt.Errorf("%s is not a URI that invokes a Lambda function", shown(uri))
		}
	}
	// arn:partition:lambda:region:account:function:name[:qualifier]
	parts := strings.Split(arn, ":")
	if len(parts) < 7 || len(parts) > 8 || parts[0] != "arn" || parts[2] != "lambda" || parts[5] != "function" ||
		parts[6] == "" {
		return "", fmt.Errorf("%s is neither the ARN of a Lambda function nor a URI that invokes one", shown(uri))
	}
	return parts[6], nil
}

// properties reads the members of an object, and remembers which of them were read.
type properties struct {
	r    *reader
	n    *node
	path string
	seen []string
}

func (r *reader) properties(res *resource) *properties {
	return &properties{r: r, n: res.properties(), path: res.path() + ".Properties"}
}

func (p *properties) problem(name, format string, args ...any) {
	path := p.path
	if name != "" {
		path += "." + name
	}
	n := p.n.field(name)
	if n == nil {
		n = p.n
	}
	p.r.problem(n, path, format, args...)
}

// node returns a member; nil if there is none.
func (p *properties) node(name string) *node {
	p.seen = append(p.seen, name)
	if n := p.n.field(name); !n.absent() {
		return n
	}
	return nil
}

// formed returns a member of the wanted form; nil if there is none. For a member of another form it reports a problem,
// in which what names the wanted form.
func (p *properties) formed(name string, want form, what string) *node {
	n := p.node(name)
	if n != nil && n.form != want {
		p.problem(name, "want %s, got %s", what, n.describe())
		return nil
	}
	return n
}

// text returns a member as text; "" if there is none.
func (p *properties) text(name string) string {
	n := p.node(name)
	if n == nil {
		return ""
	}
	s, err := p.r.resolve(n)
	if err != nil {
		p.problem(name, "%v", err)
	}
	return s
}

// flag returns a member that is true or false; false if there is none.
func (p *properties) flag(name string) bool {
	s := p.text(name)
	if s != "" && s != "true" && s != "false" {
		p.problem(name, "want true or false, got %s", shown(s))
	}
	return s == "true"
}

// integer returns a member that is a whole number; nil if there is none.
func (p *properties) integer(name string) *int {
	s := p.text(name)
	if s == "" {
		return nil
	}
	var i int
	if err := json.Unmarshal([]byte(s), &i); err != nil {
		p.problem(name, "want a whole number, got %s", shown(s))
		return nil
	}
	return &i
}

// texts returns a member that is a list of texts.
func (p *properties) texts(name string) (all []string) {
	n := p.formed(name, list, "a list")
	if n == nil {
		return nil
	}
	for _, item := range n.items {
		s, err := p.r.resolve(item)
		if err != nil {
			p.problem(name, "%v", err)
		}
		all = append(all, s)
	}
	return all
}

// table returns a member that maps names to texts.
func (p *properties) table(name string) map[string]string {
	n := p.formed(name, object, "an object")
	if n == nil {
		return nil
	}
	all := make(map[string]string, len(n.names))
	for _, key := range n.names {
		if n.fields[key].absent() {
			continue
		}
		var err error
		if all[key], err = p.r.resolve(n.fields[key]); err != nil {
			p.problem(name, "%s: %v", key, err)
		}
	}
	return all
}

// part returns a member that is an object with members of its own; nil if there is none.
func (p *properties) part(name string) *properties {
	n := p.formed(name, object, "an object")
	if n == nil {
		return nil
	}
	return &properties{r: p.r, n: n, path: p.path + "." + name}
}

// parts returns a member that is a list of objects.
func (p *properties) parts(name string) (all []*properties) {
	n := p.formed(name, list, "a list")
	if n == nil {
		return nil
	}
	for i, item := range n.items {
		if item.form != object {
			p.problem(name, "want objects, got %s", item.describe())
			continue
		}
		all = append(all, &properties{r: p.r, n: item, path: fmt.Sprintf("%s.%s[%d]", p.path, name, i)})
	}
	return all
}

// only reports a problem, with the reason why, if a member exists and has none of the values.
func (p *properties) only(name, why string, values ...string) {
	if s := p.text(name); s != "" && !slices.Contains(values, s) {
		p.problem(name, "%s: %s", shown(s), why)
	}
}

// end reports a problem for every member that was not read, except for the ignored ones, which do not change what API
// Gateway answers.
func (p *properties) end(ignored ...string) {
	if p == nil || p.n == nil {
		return
	}
	for _, name := range p.n.names {
		if !slices.Contains(p.seen, name) && !slices.Contains(ignored, name) {
			p.problem(name, "not known to the local gateway")
		}
	}
}
