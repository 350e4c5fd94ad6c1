package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// Bounds and defaults. Limits of AWS are as of November 2026.
const (
	maxCells            = 50 // the canary checks all cells within one run
	maxCellID           = 24
	maxRetention        = 36_500
	maxConcurrency      = 10_000
	minMemory           = 128
	maxMemory           = 10_240
	maxListed           = 100
	maxTextBytes        = 1024
	defaultPrefix       = "sluice"
	defaultPepper       = "p1"
	defaultNamespace    = "Sluice"
	defaultRetention    = 365
	defaultLogDays      = 30
	defaultCanary       = 5
	maxCanary           = 60
	defaultMaxInstances = 100
	defaultMemory       = 512
	maxRollbackAlarms   = 3 // AppConfig allows five per environment, and the cell's own alarms are two of them
	minWAFRate          = 10
	maxWAFRate          = 2_000_000_000

	MinDeadline = time.Millisecond // of a call of a store; a test compares both bounds with those of the functions
	MaxDeadline = 5 * time.Second
)

var (
	prefixes   = regexp.MustCompile(`^[a-z][a-z0-9]{0,15}$`)
	accounts   = regexp.MustCompile(`^[0-9]{12}$`)
	cellIDs    = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)
	roleARNs   = regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]{1,512}$`)
	pepperIDs  = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
	namespaces = regexp.MustCompile(`^[A-Za-z0-9._#/:-]{1,255}$`)
	apiIDs     = regexp.MustCompile(`^[a-z0-9]{1,64}$`)
	claimNames = regexp.MustCompile(`^[!-+\--~]{1,256}$`) // printable ASCII without the comma, which separates names
	emails     = regexp.MustCompile(`^[!-?A-~]{1,64}@[A-Za-z0-9.-]{1,190}$`)
	topics     = regexp.MustCompile(`^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}$`)
	principals = regexp.MustCompile(`^arn:aws[a-z-]*:iam::([0-9]{12}):(?:role|user)/[!-~]{1,512}$`)
	// alarm names without * and ?, which are wildcards in policies
	alarmARNs = regexp.MustCompile(`^arn:aws[a-z-]*:cloudwatch:([a-z0-9-]+):[0-9]{12}:alarm:[!-)+->@-~ ]{1,255}$`)
	stageARNs = regexp.MustCompile(`^arn:aws[a-z-]*:apigateway:([a-z0-9-]+)::/restapis/[a-z0-9]+/` +
		`stages/[A-Za-z0-9_-]{1,128}$`)
	httpStages = regexp.MustCompile(`^arn:aws[a-z-]*:apigateway:[a-z0-9-]*::/apis/`)
	algorithms = regexp.MustCompile(`^((RS|PS|ES)(256|384|512)|EdDSA)$`)
)

// Complete fills in the defaults and checks everything. The error is an *[Error] with all problems; they have paths,
// but no line numbers. Calling Complete again changes nothing.
func (d *Deployment) Complete() error {
	var c checks
	setDefault(&d.Prefix, defaultPrefix)
	c.text("prefix", d.Prefix, "a letter and up to 15 of a-z 0-9", prefixes.MatchString)
	if d.Account != "" {
		c.text("account", d.Account, "an account's 12 digits", accounts.MatchString)
	}
	setDefault(&d.Architecture, ARM64)
	c.oneOf("architecture", d.Architecture, ARM64, X8664)
	d.Control.complete(&c)
	if n := len(d.Cells); n < 1 || n > maxCells {
		c.problem("cells", "there are %d, want 1 to %d", n, maxCells)
	}
	seen := map[string]string{}
	for i := range d.Cells {
		path := fmt.Sprintf("cells[%d]", i)
		d.Cells[i].complete(&c, path)
		d.checkUniqueCell(&c, seen, path, d.Cells[i].ID, d.Cells[i].Region)
	}
	if n := len(d.Retired); n > maxCells {
		c.problem("retired", "there are %d, want at most %d", n, maxCells)
	}
	for i := range d.Retired {
		gone, path := &d.Retired[i], fmt.Sprintf("retired[%d]", i)
		c.cellID(path+".id", gone.ID)
		c.region(path+".region", gone.Region)
		d.checkUniqueCell(&c, seen, path, gone.ID, gone.Region)
	}
	d.checkAlarms(&c)
	d.checkOperators(&c)
	d.checkDeadlines(&c)
	d.checkFullCells(&c)
	d.checkAttachments(&c)
	if len(c.found) > 0 {
		return &Error{Problems: c.found}
	}
	return nil
}

// checkAlarms fills in and checks the alarm settings.
func (d *Deployment) checkAlarms(c *checks) {
	a := &d.Alarms
	setDefault(&a.Set, UsualAlarms)
	c.oneOf("alarms.set", a.Set, UsualAlarms, AllAlarms)
	if a.Email != "" {
		c.text("alarms.email", a.Email, "an address of e-mail", emails.MatchString)
	}
	c.texts("alarms.topics", a.Topics, "the ARN of a topic", topics.MatchString)
	if len(a.Topics) == 0 || slices.ContainsFunc(a.Topics, func(s string) bool { return !topics.MatchString(s) }) {
		return
	}
	if a.Email != "" {
		c.problem("alarms.email", "cannot be combined with topics: subscribe the address to your topics instead")
	}
	for _, region := range d.Regions() {
		if slices.Contains(regions, region) && a.Topic(region) == "" {
			c.problem("alarms.topics", "there is no topic in %s, and an alarm can publish to topics of its own "+
				"region only",
				region)
		}
	}
}

// checkOperators checks who may call the operators' APIs. An entry that matches nobody would lock out all operators.
func (d *Deployment) checkOperators(c *checks) {
	c.texts("operators.principals", d.Operators.Principals,
		"the ARN of a role or a user, as in arn:aws:iam::123456789012:role/operators", principals.MatchString)
	for i, arn := range d.Operators.Principals {
		if of := principals.FindStringSubmatch(arn); of != nil && d.Account != "" && of[1] != d.Account {
			c.problem(fmt.Sprintf("operators.principals[%d]", i),
				"%s is not in the account %s, and callers of another account are never admitted", configfile.Quote(arn),
				d.Account)
		}
	}
	c.texts("operators.addresses", d.Operators.Addresses,
		"an IP address, or a network such as 203.0.113.0/24 whose host bits are 0", func(s string) bool {
			if network, err := netip.ParsePrefix(s); err == nil {
				return network == network.Masked()
			}
			address, err := netip.ParseAddr(s)
			return err == nil && address.Zone() == ""
		})
}

// checkDeadlines checks how long decisions wait for the stores.
func (d *Deployment) checkDeadlines(c *checks) {
	for i := range d.Cells {
		cell, path := &d.Cells[i], fmt.Sprintf("cells[%d].deadlines", i)
		for _, of := range []struct {
			key  string
			wait time.Duration
			none string // why the cell has no such store
		}{
			{"redis", cell.Deadlines.Redis, map[bool]string{true: "a small cell counts in DynamoDB alone: say " +
				"profile: full"}[cell.Profile == Small]},
			{"dynamodb", cell.Deadlines.DynamoDB, ""},
			{"home", cell.Deadlines.Home,
				map[bool]string{true: "there is no other cell, and so no other home of quotas"}[len(d.Cells)+
					len(d.Retired) == 1]},
		} {
			switch {
			case of.wait == 0: // the function's default
			case of.none != "":
				c.problem(path+"."+of.key, "has no use: %s", of.none)
			case of.wait < MinDeadline || of.wait > MaxDeadline:
				c.problem(path+"."+of.key, "%s is outside %s to %s", of.wait, MinDeadline, MaxDeadline)
			}
		}
	}
}

// checkUniqueCell reports a cell whose id is used twice, or whose region is in another partition than the control
// plane.
func (d *Deployment) checkUniqueCell(c *checks, seen map[string]string, path, id, region string) {
	switch first := seen[id]; {
	case first != "":
		c.problem(path+".id", "the id %s is used twice, first in %s", configfile.Quote(id), first)
	case id != "":
		seen[id] = path
	}
	if slices.Contains(regions, region) && slices.Contains(regions, d.Control.Region) &&
		partition(region) != partition(d.Control.Region) {
		c.problem(path+".region", "%s is in the partition %s, and the control plane's region %s in %s: AWS has no "+
			"connection "+"between partitions",
			region, partition(region), d.Control.Region, partition(d.Control.Region))
	}
}

func (control *Control) complete(c *checks) {
	setDefault(&control.Audit.Mode, Governance)
	setDefault(&control.Audit.RetentionDays, defaultRetention)
	setDefault(&control.Pepper, defaultPepper)
	setDefault(&control.MetricsNamespace, defaultNamespace)
	setDefault(&control.LogLevel, "info")
	setDefault(&control.LogDays, defaultLogDays)
	setDefault(&control.CanaryMinutes, defaultCanary)
	c.region("control.region", control.Region)
	c.oneOf("control.audit.mode", control.Audit.Mode, Governance, Compliance)
	c.inRange("control.audit.retentionDays", control.Audit.RetentionDays, 1, maxRetention)
	switch want := Confirmation(control.Audit.RetentionDays); {
	case control.Audit.Mode == Compliance && control.Audit.Confirm != want:
		c.problem("control.audit.mode", "nobody can undo COMPLIANCE: confirm it with the key confirm, %q", want)
	case control.Audit.Mode != Compliance && control.Audit.Confirm != "":
		c.problem("control.audit.confirm", "is only for the mode COMPLIANCE")
	}
	if control.Audit.BreakGlass != "" {
		c.text("control.audit.breakGlass", control.Audit.BreakGlass,
			"a role's ARN such as arn:aws:iam::123456789012:role/break-glass",
			roleARNs.MatchString)
	}
	c.text("control.pepper", control.Pepper, "1 to 64 of A-Z a-z 0-9 . _ -", pepperIDs.MatchString)
	c.text("control.metricsNamespace", control.MetricsNamespace,
		"1 to 255 of A-Z a-z 0-9 . _ # / : - that do not begin with AWS/",
		func(s string) bool { return namespaces.MatchString(s) && !strings.HasPrefix(s, "AWS/") })
	c.oneOf("control.logLevel", control.LogLevel, "debug", "info", "warn", "error")
	if !slices.Contains(logDays, control.LogDays) {
		c.problem("control.logDays", "%d is not a retention of CloudWatch Logs: %s", control.LogDays,
			strings.Trim(fmt.Sprint(logDays), "[]"))
	}
	c.inRange("control.canaryMinutes", control.CanaryMinutes, 1, maxCanary)
}

func (cell *Cell) complete(c *checks, path string) {
	setDefault(&cell.Profile, Small)
	setDefault(&cell.MaxInstances, defaultMaxInstances)
	setDefault(&cell.MemoryMB, defaultMemory)
	c.cellID(path+".id", cell.ID)
	c.region(path+".region", cell.Region)
	c.oneOf(path+".profile", cell.Profile, Small, Full)
	c.inRange(path+".maxInstances", cell.MaxInstances, 1, maxConcurrency)
	c.inRange(path+".memoryMB", cell.MemoryMB, minMemory, maxMemory)
	c.inRange(path+".trustedHops", cell.TrustedHops, 0, identity.MaxHops)
	c.inRange(path+".retryJitter", cell.RetryJitter, 0, 100)
	c.texts(path+".claims", cell.Claims, "a claim's name without a comma", claimNames.MatchString)
	if len(cell.Claims) > 0 && len(cell.Issuers) == 0 {
		c.problem(path+".claims", "need issuers, because claims come from JWTs")
	}
	c.texts(path+".passDenials", cell.PassDenials, "an API's id", apiIDs.MatchString)
	cell.checkProtection(c, path)
	if len(cell.Issuers) > maxListed {
		c.problem(path+".issuers", "there are %d, want at most %d", len(cell.Issuers), maxListed)
	}
	for i := range cell.Issuers {
		cell.Issuers[i].check(c, fmt.Sprintf("%s.issuers[%d]", path, i))
	}
}

// checkProtection checks the alarms that take back a mode, and the firewall.
func (cell *Cell) checkProtection(c *checks, path string) {
	here := func(of *regexp.Regexp) func(string) bool {
		return func(s string) bool { m := of.FindStringSubmatch(s); return m != nil && m[1] == cell.Region }
	}
	c.texts(path+".rollbackAlarms", cell.RollbackAlarms, "the ARN of an alarm in "+cell.Region, here(alarmARNs))
	if n := len(cell.RollbackAlarms); n > maxRollbackAlarms {
		c.problem(path+".rollbackAlarms", "there are %d, want at most %d beside the cell's own", n, maxRollbackAlarms)
	}
	if len(cell.RollbackAlarms) > 0 && cell.NoKillSwitch {
		c.problem(path+".rollbackAlarms", "need the kill switch, but killSwitch is false")
	}
	if cell.WAF == nil {
		return
	}
	c.inRange(path+".waf.rate", cell.WAF.Rate, minWAFRate, maxWAFRate)
	for i, arn := range cell.WAF.Stages {
		if m := httpStages.FindStringSubmatch(arn); m != nil {
			c.problem(fmt.Sprintf("%s.waf.stages[%d]", path, i),
				"%s is a stage of an HTTP or WebSocket API, which AWS WAF does not support: put CloudFront in "+
					"front of the API", configfile.Quote(arn))
			return
		}
	}
	c.texts(path+".waf.stages", cell.WAF.Stages,
		"the ARN of a stage of a REST API in "+cell.Region+": arn:aws:apigateway:"+cell.Region+
			"::/restapis/ID/stages/NAME", here(stageARNs))
}

func (i *Issuer) check(c *checks, path string) {
	isText := func(s string) bool { return len(s) <= maxTextBytes }
	c.text(path+".issuer", i.Issuer, "at most 1024 bytes", isText)
	c.text(path+".jwksUrl", i.JWKSURL, "an https URL", func(s string) bool {
		u, err := url.Parse(s)
		return err == nil && u.Scheme == "https" && u.Host != "" && u.User == nil && isText(s)
	})
	if len(i.Audiences) == 0 {
		c.problem(path+".audiences", "is missing")
	}
	c.texts(path+".audiences", i.Audiences, "at most 1024 bytes", isText)
	c.texts(path+".algorithms", i.Algorithms, "RS, PS or ES with 256, 384 or 512, or EdDSA", algorithms.MatchString)
	c.texts(path+".tenants", i.Tenants, "a tenant's id of at most 128 bytes",
		func(s string) bool { return len(s) <= 128 })
	for _, claim := range []struct{ key, name string }{
		{"audienceClaim", i.AudienceClaim}, {"tenantClaim", i.TenantClaim}, {"subjectClaim", i.SubjectClaim},
	} {
		if claim.name != "" {
			c.text(path+"."+claim.key, claim.name, "a claim's name", claimNames.MatchString)
		}
	}
	if (len(i.Tenants) > 0) == i.AllTenants {
		c.problem(path, "want either tenants, the ids for which the issuer may issue tokens, or allTenants: true")
	}
}

// setDefault sets a value that is zero to its default.
func setDefault[T comparable](to *T, value T) {
	var zero T
	if *to == zero {
		*to = value
	}
}

type checks struct{ found []Problem }

func (c *checks) problem(path, format string, args ...any) {
	c.found = append(c.found, Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

func (c *checks) text(path, s, want string, ok func(string) bool) {
	switch {
	case s == "":
		c.problem(path, "is missing")
	case !ok(s):
		c.problem(path, "%s is not %s", configfile.Quote(s), want)
	}
}

func (c *checks) texts(path string, all []string, want string, ok func(string) bool) {
	if len(all) > maxListed {
		c.problem(path, "there are %d, want at most %d", len(all), maxListed)
		return
	}
	for i, s := range all {
		at := fmt.Sprintf("%s[%d]", path, i)
		c.text(at, s, want, ok)
		if first := slices.Index(all, s); first < i {
			c.problem(at, "%s is listed twice", configfile.Quote(s))
		}
	}
}

func (c *checks) oneOf(path, s string, words ...string) {
	c.text(path, s, "one of "+strings.Join(words, ", "), func(s string) bool { return slices.Contains(words, s) })
}

func (c *checks) inRange(path string, n, least, most int) {
	if n < least || n > most {
		c.problem(path, "%d is outside %d to %d", n, least, most)
	}
}

func (c *checks) cellID(path, id string) {
	c.text(path, id, "1 to 24 of a-z 0-9 and single hyphens between them, beginning with a letter",
		func(s string) bool { return len(s) <= maxCellID && cellIDs.MatchString(s) })
}

func (c *checks) region(path, region string) {
	c.text(path, region, "a known region of AWS",
		func(s string) bool { return slices.Contains(regions, s) })
}
