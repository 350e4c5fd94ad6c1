package infra

import (
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2/awswafv2"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/config"
)

const wafWindow = 300 // seconds over which the firewall counts the requests of an address

// newWAF makes the cell's firewall and returns its ARN. The firewall has one rule, which counts the requests of each
// address. It uses no store of Sluice, so it works while all stores are unavailable. Requests that it blocks do not
// reach the authorizer.
func newWAF(scope constructs.Construct, p *place) string {
	own, name := constructs.NewConstruct(scope, jsii.String("WAF")), p.name(config.Firewall)
	visible := func(metric string) *awswafv2.CfnWebACL_VisibilityConfigProperty {
		return &awswafv2.CfnWebACL_VisibilityConfigProperty{
			// sampled requests would contain addresses
			MetricName: &metric, CloudWatchMetricsEnabled: jsii.Bool(true), SampledRequestsEnabled: jsii.Bool(false),
		}
	}
	acl := awswafv2.NewCfnWebACL(own, jsii.String("ACL"), &awswafv2.CfnWebACLProps{
		Name: &name, Scope: jsii.String("REGIONAL"), Description: jsii.String("Sluice: addresses that call too often"),
		DefaultAction:    &awswafv2.CfnWebACL_DefaultActionProperty{Allow: map[string]any{}},
		VisibilityConfig: visible(name),
		Rules: []any{&awswafv2.CfnWebACL_RuleProperty{
			Name: jsii.String("rate"), Priority: jsii.Number(0),
			Action:           &awswafv2.CfnWebACL_RuleActionProperty{Block: map[string]any{}},
			VisibilityConfig: visible(name + "-rate"),
			Statement: &awswafv2.CfnWebACL_StatementProperty{
				RateBasedStatement: &awswafv2.CfnWebACL_RateBasedStatementProperty{
					AggregateKeyType: jsii.String("IP"), Limit: jsii.Number(p.cell.WAF.Rate),
					EvaluationWindowSec: jsii.Number(wafWindow),
				}},
		}},
	})
	for _, stage := range p.cell.WAF.Stages {
		// API/stages/NAME: the id of an association must not depend on the other stages
		_, which, _ := strings.Cut(stage, "/restapis/")
		awswafv2.NewCfnWebACLAssociation(own, jsii.String("Stage-"+strings.ReplaceAll(which, "/", "-")),
			&awswafv2.CfnWebACLAssociationProps{
				WebAclArn: acl.AttrArn(), ResourceArn: jsii.String(stage),
			})
	}
	return *acl.AttrArn()
}
