package infra

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-cdk-go/awscdk/v2"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/environ"
)

// maxEnvironment is what Lambda takes, names and values, in bytes.
const maxEnvironment = 4 << 10

// namesOf are the deployment's names in whatever partition and account it is deployed to.
func namesOf(d *config.Deployment) config.Names {
	return d.Names(*awscdk.Aws_PARTITION(), *awscdk.Aws_ACCOUNT_ID(), *awscdk.Aws_URL_SUFFIX())
}

// environment are the variables of a function. They are read as the function will read them, so that what is deployed
// starts.
func (p *place) environment(function string) (map[string]string, error) {
	variables, err := p.variables(function)
	if err != nil {
		return nil, err
	}
	control := &p.deployment.Control
	variables["SLUICE_METRICS_NAMESPACE"], variables["SLUICE_LOG_LEVEL"] = control.MetricsNamespace, control.LogLevel
	tokens := []string{p.names.Partition, "aws", p.names.Account, "123456789012", p.names.Suffix, "amazonaws.com"}
	if p.api != "" {
		tokens = append(tokens, p.api, "abc1234/"+operatorsStage)
	}
	if p.anchorKey != "" {
		tokens = append(tokens, p.anchorKey, "arn:aws:kms:eu-west-1:123456789012:key/a-1")
	}
	if p.kill != nil {
		tokens = append(tokens, p.kill.application, "abc1234", p.kill.environment, "abc1234", p.kill.profile, "abc1234")
	}
	if p.cache != nil && p.cache.group != nil {
		tokens = append(tokens, p.cache.endpoint, "cache.example.com:6379")
	}
	example := strings.NewReplacer(tokens...)
	given, size := []string(nil), 0
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		value := example.Replace(variables[name])
		given, size = append(given, name+"="+value), size+len(name)+len(value)
	}
	if size > maxEnvironment {
		return nil, fmt.Errorf("%s: its variables have %d bytes, and Lambda takes %d: fewer issuers or cells",
			function, size, maxEnvironment)
	}
	if err := readEnvironment(function, given); err != nil {
		return nil, fmt.Errorf("%s: %w", function, err)
	}
	return variables, nil
}

// readEnvironment reads variables as the function does when it starts.
func readEnvironment(function string, variables []string) (err error) {
	var bundle fs.FS // nothing of ours is beside the binary
	switch function {
	case config.Publisher:
		_, err = environ.ParsePublisher(variables)
	case config.Archiver:
		_, err = environ.ParseArchiver(variables)
	case config.Anchor:
		_, err = environ.ParseAnchor(variables)
	case config.Balancer:
		_, err = environ.ParseBalancer(variables)
	case config.Admin:
		_, err = environ.ParseAdmin(variables)
	case config.Canary:
		_, err = environ.ParseCanary(variables)
	case config.Authorizer:
		_, err = environ.Parse(variables, bundle)
	case config.Applier:
		_, err = environ.ParseApplier(variables)
	case config.Reconcile:
		_, err = environ.ParseReconcile(variables)
	case config.Ops:
		_, err = environ.ParseOps(variables, bundle)
	default:
		err = fmt.Errorf("nobody reads its variables")
	}
	return err
}

// variables are what each function alone has.
func (p *place) variables(function string) (map[string]string, error) {
	n, control := p.names, &p.deployment.Control
	switch function {
	case config.Publisher:
		return map[string]string{
			"SLUICE_PLANS_TABLE": n.Control(config.Plans), "SLUICE_TENANTS_TABLE": n.Control(config.Tenants),
			"SLUICE_KEYS_TABLE": n.Control(config.Keys), "SLUICE_TOPIC": n.TopicARN(control.Region),
			"SLUICE_KEPT_QUEUE": p.kept(),
		}, nil
	case config.Archiver:
		return map[string]string{
			"SLUICE_PLANS_TABLE": n.Control(config.Plans), "SLUICE_TENANTS_TABLE": n.Control(config.Tenants),
			"SLUICE_KEYS_TABLE": n.Control(config.Keys), "SLUICE_CELLS_TABLE": n.Control(config.Cells),
			"SLUICE_OPERATIONS_TABLE": n.Control(config.Operations),
			"SLUICE_AUDIT_BUCKET":     n.AuditBucket(control.Region),
		}, nil
	case config.Anchor:
		return map[string]string{
			"SLUICE_PLANS_TABLE": n.Control(config.Plans), "SLUICE_TENANTS_TABLE": n.Control(config.Tenants),
			"SLUICE_KEYS_TABLE": n.Control(config.Keys), "SLUICE_CELLS_TABLE": n.Control(config.Cells),
			"SLUICE_OPERATIONS_TABLE": n.Control(config.Operations),
			"SLUICE_AUDIT_BUCKET":     n.AuditBucket(control.Region),
			"SLUICE_ANCHOR_KEY":       p.anchorKey,
		}, nil
	case config.Balancer:
		return map[string]string{
			"SLUICE_PLANS_TABLE": n.Control(config.Plans), "SLUICE_CELLS_TABLE": n.Control(config.Cells),
			"SLUICE_TOPIC": n.TopicARN(control.Region), "SLUICE_KEPT_QUEUE": p.kept(),
		}, nil
	case config.Admin:
		return map[string]string{
			"SLUICE_API":         p.api,
			"SLUICE_PLANS_TABLE": n.Control(config.Plans), "SLUICE_TENANTS_TABLE": n.Control(config.Tenants),
			"SLUICE_KEYS_TABLE": n.Control(config.Keys), "SLUICE_CELLS_TABLE": n.Control(config.Cells),
			"SLUICE_STATUS_CELLS": p.configTables(), "SLUICE_SECRET": n.Control(config.Secret),
			"SLUICE_KEY_PEPPER": control.Pepper,
		}, nil
	case config.Canary:
		return map[string]string{"SLUICE_PLANS_TABLE": n.Control(config.Plans),
			"SLUICE_CANARY_CELLS": p.configTables()}, nil
	}
	if p.cell == nil {
		return nil, fmt.Errorf("%s is not a function of the control plane", function)
	}
	own := map[string]string{"SLUICE_CELL": p.cell.ID, "SLUICE_CONFIG_TABLE": p.name(config.Config)}
	switch function {
	case config.Authorizer:
		if p.kill != nil {
			own["SLUICE_KILL_SWITCH"] = p.kill.setting()
		}
		return own, p.counting(own)
	case config.Ops:
		own["SLUICE_API"], own["SLUICE_OPERATIONS_TABLE"] = p.api, p.controlTable(config.Operations)
		return own, p.counting(own)
	case config.Applier:
		own["SLUICE_KEPT_QUEUE"] = p.kept()
		p.truth(own)
	case config.Reconcile:
		p.truth(own)
	}
	return own, nil
}

// truth adds the variables of what compares the cell with the control tables.
func (p *place) truth(to map[string]string) {
	for name, table := range map[string]string{
		"SLUICE_PLANS_TABLE": config.Plans, "SLUICE_TENANTS_TABLE": config.Tenants, "SLUICE_KEYS_TABLE": config.Keys,
		"SLUICE_CELLS_TABLE": config.Cells,
	} {
		to[name] = p.controlTable(table)
	}
}

// counting adds the variables of what decides: the authorizer, and ops, which must come to the same counters.
func (p *place) counting(to map[string]string) error {
	c := p.cell
	if homes := p.homes(); len(homes) > 1 {
		to["SLUICE_HOMES"] = tables(homes)
	}
	to["SLUICE_COUNTERS_TABLE"], to["SLUICE_SECRET"] = p.name(config.Counters), p.names.Control(config.Secret)
	to["SLUICE_MAX_INSTANCES"] = strconv.Itoa(c.MaxInstances)
	to["SLUICE_TRUSTED_HOPS"], to["SLUICE_RETRY_JITTER"] = strconv.Itoa(c.TrustedHops), strconv.Itoa(c.RetryJitter)
	to["SLUICE_LEASES"] = strconv.FormatBool(!c.NoLeases)
	for name, wait := range map[string]time.Duration{
		"SLUICE_REDIS_DEADLINE": c.Deadlines.Redis, "SLUICE_DYNAMODB_DEADLINE": c.Deadlines.DynamoDB,
		"SLUICE_HOME_DEADLINE": c.Deadlines.Home,
	} {
		if wait > 0 {
			to[name] = wait.String()
		}
	}
	if len(c.Issuers) > 0 {
		issuers, err := json.Marshal(c.Issuers)
		if err != nil {
			return err
		}
		to["SLUICE_ISSUERS"] = string(issuers)
	}
	if len(c.Claims) > 0 {
		to["SLUICE_CLAIMS"] = strings.Join(c.Claims, ",")
	}
	if len(c.PassDenials) > 0 {
		to["SLUICE_PASS_DENIALS"] = strings.Join(c.PassDenials, ",")
	}
	if p.cache != nil {
		maps.Copy(to, p.cache.variables(p))
	}
	return nil
}

// kept is the URL of the place's queue of what cannot be used.
func (p *place) kept() string { return p.names.QueueURL(p.region(), p.name(config.Kept)) }

// controlTable is a control table as a cell's function calls it: by its ARN, which has its region.
func (p *place) controlTable(table string) string {
	return p.names.ControlTableARN(p.deployment.Control.Region, table)
}

// configTables are each cell's config table as the control plane's functions call them.
func (p *place) configTables() string {
	var all []home
	for i := range p.deployment.Cells {
		all = append(all, p.home(p.deployment.Cells[i].ID, p.deployment.Cells[i].Region, config.Config))
	}
	return tables(all)
}

// home is a cell and one of its tables.
type home struct{ cell, table, arn string }

// homes are the counters tables in which a quota may be: the cells', and those of the cells that are gone, in the order
// of their ids, so that their order in the file is nothing to it.
func (p *place) homes() []home {
	var all []home
	for i := range p.deployment.Cells {
		all = append(all, p.home(p.deployment.Cells[i].ID, p.deployment.Cells[i].Region, config.Counters))
	}
	for _, gone := range p.deployment.Retired {
		all = append(all, p.home(gone.ID, gone.Region, config.Counters))
	}
	slices.SortFunc(all, func(a, b home) int { return strings.Compare(a.cell, b.cell) })
	return all
}

// home is called by name where it is in the place's region, since variables have 4 KB, and else by ARN.
func (p *place) home(cell, region, table string) home {
	h := home{cell: cell, table: p.names.Cell(cell, table), arn: p.names.CellTableARN(region, cell, table)}
	if region != p.region() {
		h.table = h.arn
	}
	return h
}

func tables(of []home) string {
	all := make([]string, len(of))
	for i, h := range of {
		all[i] = h.cell + "=" + h.table
	}
	return strings.Join(all, ",")
}
