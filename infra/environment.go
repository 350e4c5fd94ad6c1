package infra

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-cdk-go/awscdk/v2"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/aws/environ"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
)

// maxEnvironment is Lambda's limit for the names and values of all variables of a function, in bytes.
const maxEnvironment = 4 << 10

// namesOf returns the names of a deployment. Partition, account and URL suffix are CDK tokens, so one template fits
// every account.
func namesOf(d *config.Deployment) config.Names {
	return d.Names(*awscdk.Aws_PARTITION(), *awscdk.Aws_ACCOUNT_ID(), *awscdk.Aws_URL_SUFFIX())
}

// environment returns the environment variables of a function. It checks them with the code by which the function reads
// them, so that a deployed function can start.
func (p *place) environment(function string) (map[string]string, error) {
	variables, err := p.variables(function)
	if err != nil {
		return nil, err
	}
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
		return nil, fmt.Errorf("%s: its environment variables have %d bytes, and Lambda accepts at most %d: "+
			"configure fewer issuers or cells",
			function, size, maxEnvironment)
	}
	if err := environ.Check(function, given, new(token.Issuers)); err != nil {
		return nil, fmt.Errorf("%s: %w", function, err)
	}
	return variables, nil
}

// variables returns the values of those variables that the function reads.
func (p *place) variables(function string) (map[string]string, error) {
	n, control := p.names, &p.deployment.Control
	all := map[string]string{
		"SLUICE_METRICS_NAMESPACE": control.MetricsNamespace, "SLUICE_LOG_LEVEL": control.LogLevel,
		"SLUICE_TOPIC": n.TopicARN(control.Region), "SLUICE_KEPT_QUEUE": p.keptQueueURL(),
		"SLUICE_AUDIT_BUCKET": n.AuditBucket(control.Region), "SLUICE_ANCHOR_KEY": p.anchorKey, "SLUICE_API": p.api,
		"SLUICE_STATUS_CELLS": p.configTables(), "SLUICE_CANARY_CELLS": p.configTables(),
		"SLUICE_SECRET": n.Control(config.Secret), "SLUICE_KEY_PEPPER": control.Pepper,
	}
	for variable, table := range map[string]string{
		"SLUICE_PLANS_TABLE": config.Plans, "SLUICE_TENANTS_TABLE": config.Tenants, "SLUICE_KEYS_TABLE": config.Keys,
		"SLUICE_CELLS_TABLE": config.Cells, "SLUICE_OPERATIONS_TABLE": config.Operations,
	} {
		all[variable] = n.Control(table)
		if p.cell != nil { // the table may be in another region
			all[variable] = n.ControlTableARN(control.Region, table)
		}
	}
	if p.cell != nil {
		all["SLUICE_CELL"], all["SLUICE_CONFIG_TABLE"] = p.cell.ID, p.name(config.Config)
		all["SLUICE_CHANGES_QUEUE"] = n.QueueURL(p.cell.Region, p.name(config.Changes))
		if p.kill != nil && function == config.Authorizer {
			all["SLUICE_KILL_SWITCH"] = p.kill.setting()
		}
		if err := p.addDecisionVariables(all); err != nil {
			return nil, err
		}
	}
	read := environ.Names(function)
	maps.DeleteFunc(all, func(name, value string) bool { return value == "" || !slices.Contains(read, name) })
	return all, nil
}

// addDecisionVariables adds the variables of functions that count requests: the authorizer, and ops, which must find
// the same counters.
func (p *place) addDecisionVariables(to map[string]string) error {
	c := p.cell
	if homes := p.homes(); len(homes) > 1 {
		to["SLUICE_HOMES"] = formatHomes(homes)
	}
	to["SLUICE_COUNTERS_TABLE"] = p.name(config.Counters)
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

// keptQueueURL returns the URL of the queue for messages and records that a function cannot use.
func (p *place) keptQueueURL() string { return p.names.QueueURL(p.region(), p.name(config.Kept)) }

// configTables returns the config tables of all cells, in the form of SLUICE_STATUS_CELLS.
func (p *place) configTables() string {
	var all []home
	for i := range p.deployment.Cells {
		all = append(all, p.home(p.deployment.Cells[i].ID, p.deployment.Cells[i].Region, config.Config))
	}
	return formatHomes(all)
}

// home is a cell with one of its tables. The field table is what the function's variables contain.
type home struct{ cell, table, arn string }

// homes returns the counters tables that can hold a quota: those of the cells, and those of retired cells. They are in
// the order of the cells' ids, so that the order in the deployment file does not change the template.
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

// home returns a cell's table, by name if it is in the function's own region, and otherwise by ARN. Names save space,
// because Lambda allows 4 KB of variables.
func (p *place) home(cell, region, table string) home {
	h := home{cell: cell, table: p.names.Cell(cell, table), arn: p.names.CellTableARN(region, cell, table)}
	if region != p.region() {
		h.table = h.arn
	}
	return h
}

func formatHomes(of []home) string {
	all := make([]string, len(of))
	for i, h := range of {
		all[i] = h.cell + "=" + h.table
	}
	return strings.Join(all, ",")
}
