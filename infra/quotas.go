package infra

import (
	"fmt"
	"io"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// Quota is what a deployment needs of a quota of the account in one region. What others in the account use comes on
// top.
type Quota struct {
	Region string
	Name   string // as Service Quotas calls it, after the service
	Needed int
	New    int // what a new account has, as of November 2026
}

const unreserved = 100 // concurrency that Lambda always leaves to functions without a reservation

// Quotas are those that a deployment can exceed, in the order in which its first deployment meets them: by region, and
// in each as CloudFormation creates what needs them. A VPC and its addresses come before the functions, and the
// concurrency of the control plane before that of the cells. The deployment is a complete one.
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

// reserved is the concurrency that functions reserve whatever the deployment file says: those of each cell, or those of
// the control plane, without the function that signs anchors.
func reserved(perCell bool) (sum int) {
	for _, f := range grants.Functions() {
		if f.PerCell == perCell && f.Name != config.Anchor {
			sum += f.Reserved
		}
	}
	return sum
}

// PrintQuotas writes a line for each quota, and marks those that are more than a new account has.
func PrintQuotas(w io.Writer, d *config.Deployment) error {
	_, err := fmt.Fprintln(w, "Quotas that this deployment needs, in the order in which its first deployment meets "+
		"them (! is more than a new account has):")
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
