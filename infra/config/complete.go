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

// Bounds and defaults. Those of AWS are as of November 2026.
const (
	maxCells            = 50 // that one canary watches
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
	maxRollbackAlarms   = 3 // of the five of an environment of AppConfig; two are ours
	minWAFRate          = 10
	maxWAFRate          = 2_000_000_000

	MinDeadline = time.Millisecond // of a store; a test holds them to what the functions take
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
	claimNames = regexp.MustCompile(`^[!-+\--~]{1,256}$`) // printable, and no comma, which separates them
	emails     = regexp.MustCompile(`^[!-?A-~]{1,64}@[A-Za-z0-9.-]{1,190}$`)
	topics     = regexp.MustCompile(`^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}$`)
	principals = regexp.MustCompile(`^arn:aws[a-z-]*:iam::([0-9]{12}):(?:role|user)/[!-~]{1,512}$`)
	// without * and ?
	alarmARNs  = regexp.MustCompile(`^arn:aws[a-z-]*:cloudwatch:([a-z0-9-]+):[0-9]{12}:alarm:[!-)+->@-~ ]{1,255}$`)
	stageARNs  = regexp.MustCompile(`^arn:aws[a-z-]*:apigateway:([a-z0-9-]+)::/restapis/[a-z0-9]+/stages/[A-Za-z0-9_-]{1,128}$`)
	httpStages = regexp.MustCompile(`^arn:aws[a-z-]*:apigateway:[a-z0-9-]*::/apis/`)
	algorithms = regexp.MustCompile(`^((RS|PS|ES)(256|384|512)|EdDSA)$`)
)

// Complete fills in what is left to its default, and checks everything. The error is an *[Error], with all that is
// wrong; its problems have paths and no places. To complete again changes nothing.
func (d *Deployment) Complete() error {
	var c checks
	standard(&d.Prefix, defaultPrefix)
	c.text("prefix", d.Prefix, "a letter and up to 15 of a-z 0-9", prefixes.MatchString)
	if d.Account != "" {
		c.text("account", d.Account, "an account's 12 digits", accounts.MatchString)
	}
	standard(&d.Architecture, ARM64)
	c.oneOf("architecture", d.Architecture, ARM64, X8664)
	d.Control.complete(&c)
	if n := len(d.Cells); n < 1 || n > maxCells {
		c.problem("cells", "there are %d, want 1 to %d", n, maxCells)
	}
	seen := map[string]string{}
	for i := range d.Cells {
		path := fmt.Sprintf("cells[%d]", i)
		d.Cells[i].complete(&c, path)
		d.once(&c, seen, path, d.Cells[i].ID, d.Cells[i].Region)
	}
	if n := len(d.Retired); n > maxCells {
		c.problem("retired", "there are %d, want at most %d", n, maxCells)
	}
	for i := range d.Retired {
		gone, path := &d.Retired[i], fmt.Sprintf("retired[%d]", i)
		c.cellID(path+".id", gone.ID)
		c.region(path+".region", gone.Region)
		d.once(&c, seen, path, gone.ID, gone.Region)
	}
	d.alarms(&c)
	d.operators(&c)
	d.deadlines(&c)
	d.full(&c)
	d.attached(&c)
	if len(c.found) > 0 {
		return &Error{Problems: c.found}
	}
	return nil
}

// alarms fills in and checks who hears of what.
func (d *Deployment) alarms(c *checks) {
	a := &d.Alarms
	standard(&a.Set, UsualAlarms)
	c.oneOf("alarms.set", a.Set, UsualAlarms, AllAlarms)
	if a.Email != "" {
		c.text("alarms.email", a.Email, "an address of e-mail", emails.MatchString)
	}
	c.texts("alarms.topics", a.Topics, "the ARN of a topic", topics.MatchString)
	if len(a.Topics) == 0 || slices.ContainsFunc(a.Topics, func(s string) bool { return !topics.MatchString(s) }) {
		return
	}
	if a.Email != "" {
		c.problem("alarms.email", "has no use beside topics of your own: subscribe it to them")
	}
	for _, region := range d.Regions() {
		if slices.Contains(regions, region) && a.Topic(region) == "" {
			c.problem("alarms.topics", "there is none in %s, and an alarm speaks to topics of its own region only",
				region)
		}
	}
}

// operators checks whom the operators' APIs let in. What none of them could be shuts everybody out.
func (d *Deployment) operators(c *checks) {
	c.texts("operators.principals", d.Operators.Principals,
		"the ARN of a role or a user, as in arn:aws:iam::123456789012:role/operators", principals.MatchString)
	for i, arn := range d.Operators.Principals {
		if of := principals.FindStringSubmatch(arn); of != nil && d.Account != "" && of[1] != d.Account {
			c.problem(fmt.Sprintf("operators.principals[%d]", i),
				"%s is not of the account %s, and callers of another one are not let in", configfile.Quote(arn),
				d.Account)
		}
	}
	c.texts("operators.addresses", d.Operators.Addresses,
		"an address, or a network without bits behind its length, as in 203.0.113.0/24", func(s string) bool {
			if network, err := netip.ParsePrefix(s); err == nil {
				return network == network.Masked()
			}
			address, err := netip.ParseAddr(s)
			return err == nil && address.Zone() == ""
		})
}

// deadlines checks how long the cells' decisions wait.
func (d *Deployment) deadlines(c *checks) {
	for i := range d.Cells {
		cell, path := &d.Cells[i], fmt.Sprintf("cells[%d].deadlines", i)
		for _, of := range []struct {
			key  string
			wait time.Duration
			none string // why there is no such store
		}{
			{"redis", cell.Deadlines.Redis, map[bool]string{true: "a small cell counts in DynamoDB alone: say " +
				"profile: full"}[cell.Profile == Small]},
			{"dynamodb", cell.Deadlines.DynamoDB, ""},
			{"home", cell.Deadlines.Home, map[bool]string{true: "there is no other cell, and so no other home of quotas"}[len(d.Cells)+len(d.Retired) == 1]},
		} {
			switch {
			case of.wait == 0: // as it is by itself
			case of.none != "":
				c.problem(path+"."+of.key, "has no use: %s", of.none)
			case of.wait < MinDeadline || of.wait > MaxDeadline:
				c.problem(path+"."+of.key, "%s is outside %s to %s", of.wait, MinDeadline, MaxDeadline)
			}
		}
	}
}

// once says where a cell is there twice, or out of reach.
func (d *Deployment) once(c *checks, seen map[string]string, path, id, region string) {
	switch first := seen[id]; {
	case first != "":
		c.problem(path+".id", "cell %s is there twice, first as %s", configfile.Quote(id), first)
	case id != "":
		seen[id] = path
	}
	if slices.Contains(regions, region) && slices.Contains(regions, d.Control.Region) &&
		partition(region) != partition(d.Control.Region) {
		c.problem(path+".region", "%s is of the partition %s and the control plane's %s of %s, and nothing goes "+
			"from one to the other",
			region, partition(region), d.Control.Region, partition(d.Control.Region))
	}
}

func (control *Control) complete(c *checks) {
	standard(&control.Audit.Mode, Governance)
	standard(&control.Audit.RetentionDays, defaultRetention)
	standard(&control.Pepper, defaultPepper)
	standard(&control.MetricsNamespace, defaultNamespace)
	standard(&control.LogLevel, "info")
	standard(&control.LogDays, defaultLogDays)
	standard(&control.CanaryMinutes, defaultCanary)
	c.region("control.region", control.Region)
	c.oneOf("control.audit.mode", control.Audit.Mode, Governance, Compliance)
	c.within("control.audit.retentionDays", control.Audit.RetentionDays, 1, maxRetention)
	switch want := Confirmation(control.Audit.RetentionDays); {
	case control.Audit.Mode == Compliance && control.Audit.Confirm != want:
		c.problem("control.audit.mode", "COMPLIANCE cannot be taken back, by anybody: confirm it with the key "+
			"confirm, %q", want)
	case control.Audit.Mode != Compliance && control.Audit.Confirm != "":
		c.problem("control.audit.confirm", "has no use without the mode COMPLIANCE")
	}
	if control.Audit.BreakGlass != "" {
		c.text("control.audit.breakGlass", control.Audit.BreakGlass,
			"a role's ARN, as arn:aws:iam::123456789012:role/break-glass",
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
	c.within("control.canaryMinutes", control.CanaryMinutes, 1, maxCanary)
}

func (cell *Cell) complete(c *checks, path string) {
	standard(&cell.Profile, Small)
	standard(&cell.MaxInstances, defaultMaxInstances)
	standard(&cell.MemoryMB, defaultMemory)
	c.cellID(path+".id", cell.ID)
	c.region(path+".region", cell.Region)
	c.oneOf(path+".profile", cell.Profile, Small, Full)
	c.within(path+".maxInstances", cell.MaxInstances, 1, maxConcurrency)
	c.within(path+".memoryMB", cell.MemoryMB, minMemory, maxMemory)
	c.within(path+".trustedHops", cell.TrustedHops, 0, identity.MaxHops)
	c.within(path+".retryJitter", cell.RetryJitter, 0, 100)
	c.texts(path+".claims", cell.Claims, "a claim's name without a comma", claimNames.MatchString)
	if len(cell.Claims) > 0 && len(cell.Issuers) == 0 {
		c.problem(path+".claims", "have no use without issuers")
	}
	c.texts(path+".passDenials", cell.PassDenials, "an API's id", apiIDs.MatchString)
	cell.guards(c, path)
	if len(cell.Issuers) > maxListed {
		c.problem(path+".issuers", "there are %d, want at most %d", len(cell.Issuers), maxListed)
	}
	for i := range cell.Issuers {
		cell.Issuers[i].check(c, fmt.Sprintf("%s.issuers[%d]", path, i))
	}
}

// guards checks what holds where Sluice does not.
func (cell *Cell) guards(c *checks, path string) {
	here := func(of *regexp.Regexp) func(string) bool {
		return func(s string) bool { m := of.FindStringSubmatch(s); return m != nil && m[1] == cell.Region }
	}
	c.texts(path+".rollbackAlarms", cell.RollbackAlarms, "the ARN of an alarm in "+cell.Region, here(alarmARNs))
	if n := len(cell.RollbackAlarms); n > maxRollbackAlarms {
		c.problem(path+".rollbackAlarms", "there are %d, want at most %d beside the cell's own", n, maxRollbackAlarms)
	}
	if len(cell.RollbackAlarms) > 0 && cell.NoKillSwitch {
		c.problem(path+".rollbackAlarms", "have no use without the kill switch")
	}
	if cell.WAF == nil {
		return
	}
	c.within(path+".waf.rate", cell.WAF.Rate, minWAFRate, maxWAFRate)
	for i, arn := range cell.WAF.Stages {
		if m := httpStages.FindStringSubmatch(arn); m != nil {
			c.problem(fmt.Sprintf("%s.waf.stages[%d]", path, i),
				"%s is of an HTTP or WebSocket API, which AWS lets no firewall stand before: put CloudFront in "+
					"front of it", configfile.Quote(arn))
			return
		}
	}
	c.texts(path+".waf.stages", cell.WAF.Stages,
		"the ARN of a stage of a REST API in "+cell.Region+": arn:aws:apigateway:"+cell.Region+"::/restapis/ID/stages/NAME", here(stageARNs))
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
		c.problem(path, "say for which tenants it may speak: either tenants, or allTenants: true")
	}
}

// standard fills in a default.
func standard[T comparable](to *T, value T) {
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
			c.problem(at, "%s is there twice", configfile.Quote(s))
		}
	}
}

func (c *checks) oneOf(path, s string, words ...string) {
	c.text(path, s, "one of "+strings.Join(words, ", "), func(s string) bool { return slices.Contains(words, s) })
}

func (c *checks) within(path string, n, least, most int) {
	if n < least || n > most {
		c.problem(path, "%d is outside %d to %d", n, least, most)
	}
}

func (c *checks) cellID(path, id string) {
	c.text(path, id, "1 to 24 of a-z 0-9 and single hyphens between them, a letter first",
		func(s string) bool { return len(s) <= maxCellID && cellIDs.MatchString(s) })
}

func (c *checks) region(path, region string) {
	c.text(path, region, "a region of AWS that is known here",
		func(s string) bool { return slices.Contains(regions, s) })
}
