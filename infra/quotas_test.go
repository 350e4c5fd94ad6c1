package infra_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/infra"
	"github.com/sluicelimits/sluice/infra/config"
)

// Guarantees that the quotas count what the templates have in each region: the concurrency that functions reserve, VPCs
// and addresses.
func TestQuotas(t *testing.T) {
	d := full()
	if err := d.Complete(); err != nil {
		t.Fatal(err)
	}
	vpcs, addresses, concurrency := 0, 0, 100
	for _, name := range []string{"sluice-control", "sluice-cell-f-1", "sluice-cell-f-2"} {
		one := decode(t, madeFull().raw[name])
		vpcs += len(one.ofType("AWS::EC2::VPC"))
		addresses += len(one.ofType("AWS::EC2::EIP"))
		for _, f := range one.ofType("AWS::Lambda::Function") {
			concurrency += int(f.get("ReservedConcurrentExecutions").(float64))
		}
	}
	want := []infra.Quota{
		{"eu-west-1", "VPC: VPCs per Region", vpcs, 5},
		{"eu-west-1", "VPC: EC2-VPC Elastic IPs", addresses, 5},
		{"eu-west-1", "Lambda: Concurrent executions", concurrency, 10},
	}
	if got := infra.Quotas(d); !reflect.DeepEqual(got, want) || vpcs != 2 || addresses != 3 {
		t.Errorf("the quotas are %+v\nwant %+v", got, want)
	}
}

// Guarantees that for two full cells with three zones the output first says that they need more addresses than an
// account has, and then which concurrency the functions need; and that a small deployment has one line.
func TestQuotasInOrder(t *testing.T) {
	zones := func(id string) config.Cell {
		network := &config.Network{Zones: 3, Egress: config.EgressNAT, CIDR: "10.0.0.0/20"}
		return config.Cell{ID: id, Region: "us-east-1", Profile: config.Full, Network: network, Cache: &config.Valkey{}}
	}
	d := &config.Deployment{
		Control: config.Control{Region: "eu-west-1", Audit: config.Audit{Anchors: true}},
		Cells:   []config.Cell{{ID: "a", Region: "eu-west-1"}, zones("b"), zones("c")},
	}
	if err := d.Complete(); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := infra.PrintQuotas(&b, d); err != nil {
		t.Fatal(err)
	}
	want := "Service quotas that this deployment needs, in the order of its first deployment " +
		"(! is more than a new account has):" + `
! eu-west-1  Lambda: Concurrent executions: 254, new accounts have 10
  us-east-1  VPC: VPCs per Region: 2, new accounts have 5
! us-east-1  VPC: EC2-VPC Elastic IPs: 6, new accounts have 5
! us-east-1  Lambda: Concurrent executions: 310, new accounts have 10
`
	if b.String() != want {
		t.Errorf("the output is %s\nwant %s", b.String(), want)
	}
}

// Guarantees that docs/deploy.md shows what is printed for the deployment file of the repository.
func TestQuotasOnThePage(t *testing.T) {
	text, err := os.ReadFile("deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	d, err := config.Read("deployment.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := infra.PrintQuotas(&b, d); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../docs/deploy.md")
	if err != nil || !strings.Contains(string(page), "\n"+b.String()) {
		t.Errorf("docs/deploy.md does not have (%v)\n%s", err, b.String())
	}
}
