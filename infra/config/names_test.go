package config_test

import (
	"slices"
	"testing"

	"github.com/sluicelimits/sluice/infra/config"
)

// everyName returns all physical names of a deployment in one namespace of AWS. No two of them may be equal.
func everyName(d *config.Deployment) []string {
	n := d.Names("aws", "123456789012", "amazonaws.com")
	var all []string
	for _, what := range slices.Concat(config.ControlTables(), config.ControlFunctions(), []string{
		config.Anchor,
		config.Changes, config.Kept, config.Failed, config.Undelivered, config.Trail, config.Secret, config.Operators,
		config.AlarmTopic,
	}) {
		all = append(all, n.Control(what))
	}
	all = append(all, "/"+n.ControlStack()) // names of stacks have a namespace of their own
	for i := range d.Cells {
		id := d.Cells[i].ID
		for _, what := range slices.Concat(config.CellFunctions(), []string{
			config.Counters, config.Config, config.Changes, config.Kept, config.Refused, config.Operators,
			config.AlarmTopic,
		}) {
			all = append(all, n.Cell(id, what))
		}
		all = append(all, "/"+n.CellStack(id))
	}
	return all
}

// FuzzNames checks that no choice of prefixes and cells gives two resources the same name, so that no deployment writes
// to the tables of another, and that each name has at most 64 characters, the strictest bound in AWS (that of a
// function).
func FuzzNames(f *testing.F) {
	f.Add("sluice", "a", "sluicea", "b")
	f.Add("sluice", "cell-a", "sluice", "a")
	f.Add("sluice", "control", "sluicecontrol", "plans")
	// the stack of the first one has the name of the other's function
	f.Add("sluice", "x-authorizer", "sluice", "cell-x")
	f.Fuzz(func(t *testing.T, prefix, cell, otherPrefix, otherCell string) {
		one, other := deployment(prefix, cell), deployment(otherPrefix, otherCell)
		if one.Complete() != nil || other.Complete() != nil {
			t.Skip("not a deployment")
		}
		names := everyName(one)
		switch {
		case one.Prefix != other.Prefix:
			names = append(names, everyName(other)...)
		case cell != otherCell:
			both := deployment(prefix, cell, otherCell)
			names = everyName(both)
		}
		slices.Sort(names)
		for i, name := range names {
			if len(name) > 64 || i > 0 && names[i-1] == name {
				t.Errorf("prefix %q with cell %q, and %q with %q: %q is too long, or the name of two resources",
					prefix, cell,
					otherPrefix, otherCell, name)
			}
		}
	})
}

func deployment(prefix string, cells ...string) *config.Deployment {
	d := &config.Deployment{Prefix: prefix, Control: config.Control{Region: "eu-west-1"}}
	for _, id := range cells {
		d.Cells = append(d.Cells, config.Cell{ID: id, Region: "us-east-1"})
	}
	return d
}

// Guarantees that ARNs and URLs have the form of AWS. They are used in roles, in variables and in other stacks, where
// nothing else checks them.
func TestNames(t *testing.T) {
	n := config.Names{Prefix: "sluice", Partition: "aws", Account: "123456789012", Suffix: "amazonaws.com"}
	for got, want := range map[string]string{
		n.TopicARN("eu-west-1"): "arn:aws:sns:eu-west-1:123456789012:sluice-changes",
		n.ControlTableARN("eu-west-1",
			config.Plans): "arn:aws:dynamodb:eu-west-1:123456789012:table/sluice-plans",
		n.CellTableARN("us-east-1", "us-1",
			config.Config): "arn:aws:dynamodb:us-east-1:123456789012:table/sluice-us-1-config",
		n.CellFunctionARN("us-east-1", "us-1",
			config.Authorizer): "arn:aws:lambda:us-east-1:123456789012:function:sluice-us-1-authorizer",
		n.ControlFunctionARN("eu-west-1", config.Admin): "arn:aws:lambda:eu-west-1:123456789012:function:sluice-admin",
		n.SecretARN(
			"us-east-1"): "arn:aws:secretsmanager:us-east-1:123456789012:secret:sluice-identity-??????",
		n.ARN("s3", "", n.AuditBucket("eu-west-1")):     "arn:aws:s3:::sluice-audit-123456789012-eu-west-1",
		n.TrailBucket("eu-west-1"):                      "sluice-trail-123456789012-eu-west-1",
		n.QueueURL("eu-west-1", n.Control(config.Kept)): "https://sqs.eu-west-1.amazonaws.com/123456789012/sluice-kept",
		n.ControlStack():                                "sluice-control",
		n.CellStack("us-1"):                             "sluice-cell-us-1",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
