package infra

import (
	"fmt"
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// place is where a function runs: in a cell, or beside the control tables. It decides which ARNs a function's grants
// refer to.
type place struct {
	deployment *config.Deployment
	names      config.Names
	cell       *config.Cell // nil for the control plane
	kill       *killSwitch  // nil if the cell has none
	cache      *cache       // nil in a small cell
	anchorKey  string       // the ARN of the key that signs anchors, a CDK token; empty if there are no anchors
	api        string       // the id of the operators' API and its stage, a CDK token
}

// region returns the region of the cell or of the control plane.
func (p *place) region() string {
	if p.cell != nil {
		return p.cell.Region
	}
	return p.deployment.Control.Region
}

// name returns the physical name of a resource of the cell or of the control plane.
func (p *place) name(what string) string {
	if p.cell != nil {
		return p.names.Cell(p.cell.ID, what)
	}
	return p.names.Control(what)
}

// controlTables maps the kinds of resources that are control tables or their streams to the names of the tables.
var controlTables = map[grants.Resource]string{
	grants.Plans: config.Plans, grants.Tenants: config.Tenants, grants.Keys: config.Keys, grants.Cells: config.Cells,
	grants.Operations:  config.Operations,
	grants.PlansStream: config.Plans, grants.TenantsStream: config.Tenants, grants.KeysStream: config.Keys,
	grants.CellsStream: config.Cells, grants.OperationsStream: config.Operations,
}

// arns returns the ARNs of a kind of resource, for one function. It returns an error if this place has no such
// resource.
func (p *place) arns(kind grants.Resource, function string) ([]string, error) {
	all := p.sharedARNs(kind, function)
	if all == nil && p.cell != nil {
		all = p.cellARNs(kind)
	}
	if all == nil && p.cell == nil && kind == grants.Failed {
		all = []string{p.names.ARN("sqs", p.region(), p.name(config.Failed))}
	}
	if all == nil {
		return nil, fmt.Errorf("internal/aws/grants lets %s use %s, which does not exist here", function, kind)
	}
	return all, nil
}

// sharedARNs returns the ARNs of a kind of resource that both cells and the control plane have or use, and nil for
// other kinds.
func (p *place) sharedARNs(kind grants.Resource, function string) []string {
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
		return []string{"*"} // network interfaces, which Lambda makes: AWS supports no narrower resource
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

// cellARNs returns the ARNs of a kind of resource that only a cell has, and nil for other kinds.
func (p *place) cellARNs(kind grants.Resource) []string {
	switch kind {
	case grants.Config:
		return []string{p.names.CellTableARN(p.cell.Region, p.cell.ID, config.Config)}
	case grants.Counters:
		var all []string // also the tables of other cells, from which this cell leases quotas
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
		return []string{p.kill.arn(p)} // only reached if the cell has a kill switch
	default:
		return nil
	}
}

// policy returns the policy of a function's role. Some grants depend on the function's variables.
func (p *place) policy(f *grants.Function, name string, variables map[string]string) (awsiam.PolicyDocument, error) {
	document := awsiam.NewPolicyDocument(nil)
	for i := range f.Grants {
		g := &f.Grants[i]
		if variable, value, bound := strings.Cut(g.With, "="); variable != "" && (variables[variable] == "" || bound &&
			variables[variable] != value) {
			continue
		}
		if g.On == grants.Signing { // the key's policy allows it; role and key cannot both name the other one
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
			document.AddStatements(p.denyOwnCalls(name, g.Actions))
		}
	}
	return document, nil
}

// denyOwnCalls denies the function's own code what Lambda does for the function with the same role. Only calls that the
// code makes have the condition's key. Without this, a compromised function could delete network interfaces of the
// whole account.
func (p *place) denyOwnCalls(function string, actions []string) awsiam.PolicyStatement {
	return awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Effect: awsiam.Effect_DENY, Actions: jsii.Strings(actions...), Resources: jsii.Strings("*"),
		Conditions: &map[string]any{"ArnEquals": map[string]any{"lambda:SourceFunctionArn": p.names.ARN("lambda",
			p.region(), "function:"+function)}},
	})
}
