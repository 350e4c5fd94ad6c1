package cost

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/aws/grants"
)

// Profile is the kind of a cell.
type Profile string

// The profiles.
const (
	Small Profile = "small" // DynamoDB only, no VPC
	Full  Profile = "full"  // ElastiCache in a VPC, DynamoDB for quotas
)

// Profiles lists the profiles.
func Profiles() []Profile { return []Profile{Small, Full} }

// Bounds of a workload.
const (
	MaxRPS     = 1_000_000_000
	MaxTenants = 10_000_000
	MaxCells   = 1_000
	MaxNAT     = 12
	MaxChanges = 10_000_000
	MaxPeak    = 1_000
)

// Workload describes the requests to a deployment, and the deployment. [NewWorkload] returns the defaults.
type Workload struct {
	RPS     float64 // requests a second on average over the month, all cells together, denied ones included; 0..MaxRPS
	Tenants int64   // active tenants, each of which sends requests to every cell; 1..MaxTenants
	Cells   int64   // cells, all in one region and one account; 1..MaxCells

	Region      string
	Profile     Profile
	Leases      bool
	DeniedShare float64       // share of the requests that are denied, 0..1
	Peak        float64       // requests per second at the busiest time divided by the average, 1..MaxPeak
	Duration    time.Duration // average billed time of a request, 1 ms..10 s; 0: calculated from the calls to stores
	Changes     int64         // changes of plans, tenants and keys a day, 0..MaxChanges
	Canary      time.Duration // time between two runs of the canary, 1 min..24 h; 0: there is no canary

	// Settings of full cells.
	Node   string // type of the cache's nodes
	Quotas bool   // requests are also counted by a quota
	NAT    int64  // NAT gateways in each full cell, 0..MaxNAT

	Dashboard    bool // a dashboard of CloudWatch, one for all cells
	CustomerKeys bool // customer-managed KMS keys: one for the control tables and one in each cell
	Anchors      bool // the audit trail has signed anchors, which need a KMS key
	// PlatformLogs says that Lambda's own lines for each call of the authorizer are kept, which is Lambda's default.
	PlatformLogs bool
}

// NewWorkload returns a workload of rps requests per second in one small cell in us-east-1.
func NewWorkload(rps float64) Workload {
	canary, _ := grants.Of("canary")
	return Workload{
		RPS: rps, Tenants: 100, Cells: 1, Region: "us-east-1", Profile: Small, Leases: true,
		Peak: 2, Changes: 10, Canary: canary.Schedule, Node: "cache.r7g.large",
		PlatformLogs: true,
	}
}

// WorkloadError says which value of a workload is not valid. Its text begins with the name of the command's flag.
type WorkloadError struct{ text string }

func (e *WorkloadError) Error() string { return e.text }

// check returns an error for the first value that is not valid.
func (w *Workload) check(p *Prices) error {
	bad := func(format string, args ...any) error { return &WorkloadError{fmt.Sprintf(format, args...)} }
	within := func(name string, v, low, high float64) error {
		if v >= low && v <= high { // which NaN is not
			return nil
		}
		return bad("%s is outside %.0f..%.0f", name, low, high)
	}
	for _, err := range []error{
		within("rps", w.RPS, 0, MaxRPS),
		within("tenants", float64(w.Tenants), 1, MaxTenants),
		within("cells", float64(w.Cells), 1, MaxCells),
		within("denied-share", w.DeniedShare, 0, 1),
		within("peak", w.Peak, 1, MaxPeak),
		within("changes", float64(w.Changes), 0, MaxChanges),
		within("nat", float64(w.NAT), 0, MaxNAT),
	} {
		if err != nil {
			return err
		}
	}
	return w.checkDeployment(p)
}

// checkDeployment checks the values that describe the deployment.
func (w *Workload) checkDeployment(p *Prices) error {
	bad := func(format string, args ...any) error { return &WorkloadError{fmt.Sprintf(format, args...)} }
	switch {
	case !slices.Contains(p.regions, w.Region):
		return bad("region %q has no prices; there are %s. --json has the quantities, for prices of your own",
			clip(w.Region), strings.Join(p.regions, ", "))
	case !slices.Contains(Profiles(), w.Profile):
		return bad("profile %q is neither small nor full", clip(string(w.Profile)))
	case w.Duration != 0 && (w.Duration < time.Millisecond || w.Duration > 10*time.Second):
		return bad("duration %s is outside 1ms..10s", w.Duration)
	case w.Canary != 0 && (w.Canary < time.Minute || w.Canary > 24*time.Hour):
		return bad("canary %s is outside 1m..24h; 0 is none", w.Canary)
	case w.Profile == Full && !p.hasNode(w.Node, w.Region):
		return bad("node %q has no price in %s; there are %s", clip(w.Node), w.Region,
			strings.Join(p.Nodes(), ", "))
	case w.Profile == Small && (w.Quotas || w.NAT > 0):
		return bad("quotas and nat are for --profile full: a small cell has its quotas with the rest, and no VPC")
	}
	return nil
}
