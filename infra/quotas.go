package infra

import (
	"fmt"
	"io"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// Quota is a service quota of the account in one region, and how much of it a deployment needs. What else the account
// uses comes on top.
type Quota struct {
	Region string
	Name   string // the service, and the quota's name in Service Quotas
	Needed int
	New    int // the quota of a new account, as of November 2026
}

const unreserved = 100 // the concurrency that Lambda always keeps for functions without a reservation

// Quotas returns the quotas that a deployment can exceed, in the order in which its first deployment reaches them: by
// region, and within a region in CloudFormation's order. CloudFormation makes a VPC and its addresses before the
// functions, and the control plane before the cells. The deployment must be complete: see [config.Deployment.Complete].
func Quotas(d *config.Deployment) []Quota {
	var all []Quota
	for _, region := range d.Regions() {
		concurrency, vpcs, addresses := unreserved, 0, 0
		if region == d.Control.Region {
			concurrency += reserved(false)
			if d.Control.Audit.Anchors {
				anchor, _ := grants.Of(config.Anchor)
				concurrency += anchor.Reserved
			}
		}
		for i := range d.Cells {
			cell := &d.Cells[i]
			if cell.Region != region {
				continue
			}
			concurrency += cell.MaxInstances + reserved(true)
			if cell.Profile == config.Full && cell.Network.VPC == "" {
				vpcs++
				if cell.Network.Egress == config.EgressNAT {
					addresses += cell.Network.Zones
				}
			}
		}
		for _, q := range []Quota{
			{region, "VPC: VPCs per Region", vpcs, 5},
			{region, "VPC: EC2-VPC Elastic IPs", addresses, 5},
			{region, "Lambda: Concurrent executions", concurrency, 10},
		} {
			if q.Needed > 0 {
				all = append(all, q)
			}
		}
	}
	return all
}

// reserved returns the concurrency that functions reserve whatever the deployment file says: the functions of one cell,
// or those of the control plane without the anchor function.
func reserved(perCell bool) (sum int) {
	for _, f := range grants.Functions() {
		if f.PerCell == perCell && f.Name != config.Anchor {
			sum += f.Reserved
		}
	}
	return sum
}

// PrintQuotas writes a line for each quota. Lines of quotas that exceed those of a new account begin with "!".
func PrintQuotas(w io.Writer, d *config.Deployment) error {
	_, err := fmt.Fprintln(w, "Service quotas that this deployment needs, in the order of its first deployment "+
		"(! is more than a new account has):")
	for _, q := range Quotas(d) {
		if err != nil {
			return err
		}
		mark := " "
		if q.Needed > q.New {
			mark = "!"
		}
		_, err = fmt.Fprintf(w, "%s %s  %s: %d, new accounts have %d\n", mark, q.Region, q.Name, q.Needed, q.New)
	}
	return err
}
