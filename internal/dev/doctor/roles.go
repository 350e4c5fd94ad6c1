package doctor

import (
	"context"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"
	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/sluicelimits/sluice/events"
)

func leadingKeys(ctx context.Context, t *Target) Finding {
	a := t.Account
	if a == nil {
		return noAccount()
	}
	balancer := a.function("", "balancer")
	f, err := a.In(a.Region).Lambda.GetFunctionConfiguration(ctx,
		&lambda.GetFunctionConfigurationInput{FunctionName: &balancer})
	if err != nil {
		return failed(err, "lambda:GetFunctionConfiguration of "+balancer)
	}
	role := strings.Split(aws.ToString(f.Role), ":") // arn:aws:iam::ACCOUNT:role/NAME
	if len(role) < 6 {
		return unknown("", "%s has the role %q", balancer, clip(aws.ToString(f.Role), 80))
	}
	table := "arn:" + role[1] + ":dynamodb:" + a.Region + ":" + role[4] + ":table/" + a.function("", "cells")
	for _, c := range []struct {
		key string
		may bool
	}{{events.SharesKey, true}, {"a-cell", false}} {
		out, err := a.In(a.Region).Roles.SimulatePrincipalPolicy(ctx, &iam.SimulatePrincipalPolicyInput{
			PolicySourceArn: f.Role, ActionNames: []string{"dynamodb:PutItem"}, ResourceArns: []string{table},
			ContextEntries: []iamtypes.ContextEntry{{ContextKeyName: aws.String("dynamodb:LeadingKeys"),
				ContextKeyType: iamtypes.ContextKeyTypeEnumStringList, ContextKeyValues: []string{c.key}}},
		})
		if err != nil {
			return failed(err, "iam:SimulatePrincipalPolicy")
		}
		if len(out.EvaluationResults) != 1 {
			return unknown("", "IAM's simulator gave %d answers to one question", len(out.EvaluationResults))
		}
		if may := out.EvaluationResults[0].EvalDecision == iamtypes.PolicyEvaluationDecisionTypeAllowed; may != c.may {
			if epoch := t.sharesPublished(ctx); c.may && epoch > 0 {
				return unknown("ask IAM's simulator in the console: what it said cannot be true",
					"IAM's simulator says of the role of %s and the key %s: %s; but the balancer has written that key "+
						"(epoch %d)", balancer, c.key, out.EvaluationResults[0].EvalDecision, epoch)
			}
			return violated("IAM's simulator says of the role of %s and the key %s: %s", balancer, c.key,
				out.EvaluationResults[0].EvalDecision)
		}
	}
	return confirmed("by IAM's simulator the role of %s may put %s, and no cell", balancer, events.SharesKey)
}

// sharesPublished returns the epoch of the shares that the balancer has written; 0 if it is not known.
func (t *Target) sharesPublished(ctx context.Context) int64 {
	if t.Operators == nil {
		return 0
	}
	cells, err := t.Operators.Cells(ctx)
	if err != nil {
		return 0
	}
	return cells.Epoch
}
