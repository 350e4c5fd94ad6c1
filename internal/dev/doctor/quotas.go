package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"

	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// Defaults of AWS and of the deployment file.
const (
	unreserved   = 100 // concurrent executions that Lambda keeps for functions without a reservation
	maxInstances = 100 // default of maxInstances in the deployment file: the authorizer's environments in a cell
)

// need holds the quotas that a deployment needs in one region.
type need struct{ executions, vpcs, addresses int }

func quotas(ctx context.Context, t *Target) Finding {
	a := t.Account
	if a == nil {
		return noAccount()
	}
	var saw []string
	for _, region := range a.regions() {
		n, err := a.need(ctx, region)
		if err != nil {
			return failed(err, "lambda:GetFunctionConcurrency and GetFunctionConfiguration")
		}
		in := a.In(region)
		out, err := in.Lambda.GetAccountSettings(ctx, &lambda.GetAccountSettingsInput{})
		if err != nil {
			return failed(err, "lambda:GetAccountSettings")
		}
		if out.AccountLimit == nil {
			return unknown("", "lambda:GetAccountSettings has no limit in it")
		}
		has := int(out.AccountLimit.ConcurrentExecutions)
		saw = append(saw, fmt.Sprintf("%s: %d concurrent executions, of which %d are needed", region, has,
			n.executions))
		if has < n.executions {
			return violated("%s", saw[len(saw)-1])
		}
		f := in.networkQuotas(ctx, n)
		if f.Saw != "" {
			saw = append(saw, f.Saw)
		}
		if f.Saw = strings.Join(saw, "; "); f.Result != Holds {
			return f
		}
	}
	return confirmed("%s", strings.Join(saw, "; "))
}

// networkQuotas looks at the quotas of full cells' networks. Saw is "" if there are none.
func (s Services) networkQuotas(ctx context.Context, n need) Finding {
	var saw []string
	for _, q := range []struct {
		service, code, what string
		need                int
	}{{"vpc", "L-F678F1CE", "VPCs", n.vpcs}, {"ec2", "L-0263D0A3", "Elastic IPs", n.addresses}} {
		if q.need == 0 {
			continue
		}
		in := &servicequotas.GetServiceQuotaInput{ServiceCode: &q.service, QuotaCode: &q.code}
		out, err := s.Quotas.GetServiceQuota(ctx, in)
		if err != nil {
			return failed(err, "servicequotas:GetServiceQuota")
		}
		if out.Quota == nil || out.Quota.Value == nil {
			return unknown("", "Service Quotas says nothing of %s", q.what)
		}
		saw = append(saw, fmt.Sprintf("%.0f %s, of which up to %d are needed", *out.Quota.Value, q.what, q.need))
		if *out.Quota.Value < float64(q.need) {
			return violated("%s", saw[len(saw)-1])
		}
	}
	return confirmed("%s", strings.Join(saw, "; "))
}

// need adds up the executions that functions reserve in the region, and for each full cell there a VPC and one address
// for the NAT gateway of each zone.
func (a *Account) need(ctx context.Context, region string) (need, error) {
	n := need{executions: unreserved}
	perCell := 0
	for _, f := range grants.Functions() {
		switch {
		case f.PerCell:
			perCell += f.Reserved
		case region == a.Region:
			n.executions += f.Reserved
		}
	}
	in := a.In(region)
	for _, c := range a.Cells {
		if c.Region != region {
			continue
		}
		authorizer, instances := a.function(c.ID, "authorizer"), maxInstances
		reserved, err := in.Lambda.GetFunctionConcurrency(ctx,
			&lambda.GetFunctionConcurrencyInput{FunctionName: &authorizer})
		switch {
		case err == nil && reserved.ReservedConcurrentExecutions != nil:
			instances = int(*reserved.ReservedConcurrentExecutions)
		case err != nil && !notThere(err):
			return n, err
		}
		n.executions += perCell + instances
		f, err := in.Lambda.GetFunctionConfiguration(ctx,
			&lambda.GetFunctionConfigurationInput{FunctionName: &authorizer})
		switch {
		case err == nil && f.VpcConfig != nil && aws.ToString(f.VpcConfig.VpcId) != "":
			n.vpcs, n.addresses = n.vpcs+1, n.addresses+len(f.VpcConfig.SubnetIds)
		case err != nil && !notThere(err):
			return n, err
		}
	}
	return n, nil
}
