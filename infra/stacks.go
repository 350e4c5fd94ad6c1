package infra

import (
	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/config"
)

// Stacks are all stacks of a deployment.
type Stacks struct {
	Control *ControlStack
	Cells   []*CellStack // in the order of the deployment file
}

// NewStacks makes the stacks of a deployment in an app: one for the control plane, and one for each cell. Each cell's
// stack depends on the stack before it, so CDK deploys them one after the other and stops at the first that fails. The
// templates do not contain this order, so you can add and remove cells anywhere in the list.
func NewStacks(app constructs.Construct, d *config.Deployment, lambdas string) (stacks *Stacks, err error) {
	defer recoverError("stacks", &err)
	if err := d.Complete(); err != nil {
		return nil, err
	}
	s := &Stacks{}
	if s.Control, err = newControlStack(app, &ControlPlaneProps{Deployment: d, Lambdas: lambdas}); err != nil {
		return nil, err
	}
	before := s.Control.Stack
	for i := range d.Cells {
		cell, err := newCellStack(app, &CellProps{Deployment: d, Cell: d.Cells[i].ID, Lambdas: lambdas})
		if err != nil {
			return nil, err
		}
		cell.Stack.AddStackDependency(before, jsii.String("stacks are deployed one at a time"))
		s.Cells, before = append(s.Cells, cell), cell.Stack
	}
	return s, nil
}

// newStack makes a stack whose template does not depend on the machine on which it is made.
func newStack(app constructs.Construct, name string, d *config.Deployment, region, description string) awscdk.Stack {
	env := &awscdk.Environment{Region: &region}
	if d.Account != "" {
		env.Account = &d.Account
	}
	return awscdk.NewStack(app, &name, &awscdk.StackProps{
		Env: env, Description: &description, AnalyticsReporting: jsii.Bool(false),
		Tags: &map[string]*string{"sluice": &d.Prefix}, CrossRegionReferences: jsii.Bool(false),
	})
}

func output(s awscdk.Stack, id, description, value string) {
	awscdk.NewCfnOutput(s, &id, &awscdk.CfnOutputProps{Description: &description, Value: &value})
}
