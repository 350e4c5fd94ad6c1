package infra

import (
	"fmt"
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// place is where a function is, which says what ARN is meant by each kind of resource.
type place struct {
	deployment *config.Deployment
	names      config.Names
	cell       *config.Cell // nil beside the control tables
	kill       *killSwitch  // nil: none
	cache      *cache       // nil in a small cell
	anchorKey  string       // that signs anchors; CDK's token, empty where there are none
	api        string       // the operators' API, with its stage; CDK's token
}

// region is the one that the function is in.
func (p *place) region() string {
	if p.cell != nil {
		return p.cell.Region
	}
	return p.deployment.Control.Region
}

// name is the physical name of one of the place's things.
func (p *place) name(what string) string {
	if p.cell != nil {
		return p.names.Cell(p.cell.ID, what)
	}
	return p.names.Control(what)
}

// controlTables are the kinds of resources that are control tables and their streams.
var controlTables = map[grants.Resource]string{
	grants.Plans: config.Plans, grants.Tenants: config.Tenants, grants.Keys: config.Keys, grants.Cells: config.Cells,
	grants.Operations:  config.Operations,
	grants.PlansStream: config.Plans, grants.TenantsStream: config.Tenants, grants.KeysStream: config.Keys,
	grants.CellsStream: config.Cells, grants.OperationsStream: config.Operations,
}

// arns are those of a kind of resource, for a function of that name. An error is a kind that this place does not have.
func (p *place) arns(kind grants.Resource, function string) ([]string, error) {
	all := p.shared(kind, function)
	if all == nil && p.cell != nil {
		all = p.ofCell(kind)
	}
	if all == nil && p.cell == nil && kind == grants.Failed {
		all = []string{p.names.ARN("sqs", p.region(), p.name(config.Failed))}
	}
	if all == nil {
		return nil, fmt.Errorf("%s may do something on %s, of which there is none here", function, kind)
	}
	return all, nil
}

// shared are the ARNs of what a function may be allowed wherever it is; nil for another kind.
func (p *place) shared(kind grants.Resource, function string) []string {
	control := p.deployment.Control.Region
	if table := controlTables[kind]; table != "" {
		arn := p.names.ControlTableARN(control, table)
		if strings.HasPrefix(string(kind), "the stream") {
			arn += "/stream/*"
		}
		return []string{arn}
	}
	switch kind {
	case grants.Topic:
		return []string{p.names.TopicARN(control)}
	case grants.Secret:
		return []string{p.names.SecretARN(p.region())}
	case grants.Objects:
		bucket := p.names.ARN("s3", "", p.names.AuditBucket(control))
		return []string{bucket + "/audit/*", bucket + "/rejected/*"}
	case grants.Anchors:
		return []string{p.names.ARN("s3", "", p.names.AuditBucket(control)) + "/anchors/*"}
	case grants.Names:
		return []string{p.names.ARN("s3", "", p.names.AuditBucket(control))}
	case grants.Kept:
		return []string{p.names.ARN("sqs", p.region(), p.name(config.Kept))}
	case grants.Logs:
		return []string{p.names.ARN("logs", p.region(), "log-group:/aws/lambda/"+function+":*")}
	case grants.Network:
		return []string{"*"} // Lambda makes them, and AWS has nothing narrower for it
	case grants.AllConfig:
		var all []string
		for i := range p.deployment.Cells {
			c := &p.deployment.Cells[i]
			all = append(all, p.names.CellTableARN(c.Region, c.ID, config.Config))
		}
		return all
	default:
		return nil
	}
}

// ofCell are the ARNs of what is in the cell; nil for another kind.
func (p *place) ofCell(kind grants.Resource) []string {
	switch kind {
	case grants.Config:
		return []string{p.names.CellTableARN(p.cell.Region, p.cell.ID, config.Config)}
	case grants.Counters:
		var all []string // with those of the other cells, from which their quotas are leased
		for _, h := range p.homes() {
			all = append(all, h.arn)
		}
		return all
	case grants.Changes:
		return []string{p.names.ARN("sqs", p.cell.Region, p.name(config.Changes))}
	case grants.Cache:
		return []string{
			p.names.ARN("elasticache", p.cell.Region, "replicationgroup:"+p.cache.name), p.names.ARN("elasticache",
				p.cell.Region, "user:"+p.cache.user),
		}
	case grants.Login:
		return []string{p.names.ARN("secretsmanager", p.cell.Region, "secret:"+p.cache.secret+"-??????")}
	case grants.Switch:
		return []string{p.kill.arn(p)} // asked for where the variable is there, and so the switch
	default:
		return nil
	}
}

// policy is what the function's role may do, with its variables.
func (p *place) policy(f *grants.Function, name string, variables map[string]string) (awsiam.PolicyDocument, error) {
	document := awsiam.NewPolicyDocument(nil)
	for i := range f.Grants {
		g := &f.Grants[i]
		if variable, value, bound := strings.Cut(g.With, "="); variable != "" && (variables[variable] == "" || bound &&
			variables[variable] != value) {
			continue
		}
		if g.On == grants.Signing { // by the key's policy, which names the role, so the role cannot name the key
			continue
		}
		arns, err := p.arns(g.On, name)
		if err != nil {
			return nil, err
		}
		statement := &awsiam.PolicyStatementProps{Actions: jsii.Strings(g.Actions...), Resources: jsii.Strings(arns...)}
		cell := ""
		if p.cell != nil {
			cell = p.cell.ID
		}
		if keys := g.LeadingKeys(cell); len(keys) > 0 {
			// Without the second condition a request that names no key at all would pass. Assumption: leading-keys.
			statement.Conditions = &map[string]any{
				"ForAllValues:StringLike": map[string]any{"dynamodb:LeadingKeys": keys},
				"Null":                    map[string]any{"dynamodb:LeadingKeys": "false"},
			}
		}
		document.AddStatements(awsiam.NewPolicyStatement(statement))
		if g.On == grants.Network {
			document.AddStatements(p.notByItself(name, g.Actions))
		}
	}
	return document, nil
}

// notByItself keeps from the function's own code what Lambda does for it by its role: only calls that the code makes
// have the condition's key. A function that was taken over could else delete network interfaces of the whole account.
func (p *place) notByItself(function string, actions []string) awsiam.PolicyStatement {
	return awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Effect: awsiam.Effect_DENY, Actions: jsii.Strings(actions...), Resources: jsii.Strings("*"),
		Conditions: &map[string]any{"ArnEquals": map[string]any{"lambda:SourceFunctionArn": p.names.ARN("lambda",
			p.region(), "function:"+function)}},
	})
}
