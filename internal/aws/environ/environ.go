// Package environ reads the settings of deployed functions from environment variables. It reports all problems at once.
//
// A problem names its variable and never repeats the value, which may be a secret in the wrong place. The variables are
// described in docs/authorizer.md and docs/functions.md.
package environ

import (
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// prefix begins the names of all our variables. An unknown variable with this prefix is a mistake.
const prefix = "SLUICE_"

// Settings holds the settings of an authorizer. Each is within its bounds, and they do not contradict each other.
type Settings struct {
	Cell     string // id of the cell
	LogLevel slog.Level

	Alone bool // with ConfigTable: there is no other cell

	// Exactly one of these is set: ConfigFile is a plans file, slash-separated and relative to the bundle; ConfigTable
	// is the cell's config table.
	ConfigFile, ConfigTable string

	CountersTable    string // of DynamoDB
	DynamoDBDeadline time.Duration
	// counters tables of other cells, from which this cell leases units of quotas that they count
	Homes        []CellTable
	HomeDeadline time.Duration
	// nil in a small cell: all counters are in DynamoDB, except those of ipLimits, which are in memory
	Redis *Redis

	Secret string // name or ARN of the secret with the peppers, the address key, and Redis's password

	Claims []string // further claims of a JWT to keep

	TrustedHops      int
	RetryJitter      int      // percent
	PassDenials      []string // ids of APIs
	Leases           bool
	MaxInstances     int        // the most environments that may run
	KillSwitch       *AppConfig // nil means that limits are always enforced
	MetricsNamespace string
}

// Issuers reads and keeps who may issue JWTs. *token.Issuers implements it. [Parse] does not read issuers itself,
// because the functions that verify no JWT would then link the code that does.
type Issuers interface {
	Read(from io.Reader) error // reads a JSON array of issuers; the error continues a sentence
	Check() error              // checks what was read
}

// AppConfig identifies a configuration in AWS AppConfig by ids.
type AppConfig struct{ Application, Environment, Profile string }

// RedisConnections is the most connections of an environment to one node of Redis. A function serves one call at a
// time, with a few background tasks; on a managed instance it serves several.
const RedisConnections = 32

// Redis says where rates are counted, and how to connect.
type Redis struct {
	Addrs    []string // host:port
	Cluster  bool
	TLS      bool
	Deadline time.Duration

	Auth Auth
	// Secret is, with AuthSecret, the name or ARN of the secret with user and password; if "", they are in
	// Settings.Secret.
	Secret string
	Cache  string // with AuthIAM: the id of the replication group
	User   string // with AuthIAM
}

// Auth says how to authenticate to Redis.
type Auth int

// The ways to authenticate.
const (
	AuthNone   Auth = iota
	AuthSecret      // user and password are in a secret
	AuthIAM         // with a token that is made with the function's role
)

// Error holds every problem of an environment: first unknown variables, then the others in the order of
// docs/authorizer.md.
type Error struct{ Problems []Problem }

// Problem is a fault of one variable.
type Problem struct{ Variable, Text string }

// Error returns a line for each problem.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("the environment's settings are wrong:")
	for _, p := range e.Problems {
		b.WriteString("\n" + p.Variable + " " + p.Text)
	}
	return b.String()
}

// parser reads the environment of an authorizer.
type parser struct {
	Settings

	problems

	bundle     fs.FS
	issuers    Issuers
	hasIssuers bool // they were read
	redis      Redis
}

// problems holds the variables of a function as they are set, and the problems with them.
type problems struct {
	given map[string]string
	found []Problem
}

func (p *problems) wrong(variable, text string) {
	p.found = append(p.found, Problem{variable, text})
}

// bad reports whether a problem with the variable is known.
func (p *problems) bad(variable string) bool {
	return slices.ContainsFunc(p.found, func(w Problem) bool { return w.Variable == variable })
}

// err returns all problems as an error, or nil.
func (p *problems) err() error {
	if len(p.found) > 0 {
		return &Error{p.found}
	}
	return nil
}

// read reads the function's variables from an environment.
func (p *problems) read(function string, variables []variable, environ []string) {
	p.given = make(map[string]string)
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if !slices.ContainsFunc(variables, func(v variable) bool { return v.name == name }) {
			p.wrong(shown(name), "is not a variable of the "+function)
		} else {
			p.given[name] = value
		}
	}
	slices.SortFunc(p.found, func(a, b Problem) int { return strings.Compare(a.Variable, b.Variable) })
	for _, v := range variables {
		value := p.given[v.name]
		switch {
		case value == "" && v.required:
			p.wrong(v.name, "is missing")
			continue
		case value == "":
			value = v.otherwise
		}
		if value == "" {
			continue
		}
		if text := v.read(strings.TrimSpace(value)); text != "" {
			p.wrong(v.name, text)
		}
	}
}

// Parse reads variables in the form of os.Environ. It ignores variables that do not begin with SLUICE_, and treats an
// empty variable as not set. It reads files from bundle, which is the folder of the function's code. It reads into
// issuers who may issue JWTs; if the environment names nobody, issuers is left as it is. The error is an *[Error].
func Parse(environ []string, bundle fs.FS, issuers Issuers) (*Settings, error) {
	p := &parser{bundle: bundle, issuers: issuers}
	p.read("authorizer", p.variables(), environ)
	p.together()
	if err := p.err(); err != nil {
		return nil, err
	}
	return &p.Settings, nil
}

// shown returns the part of a name that may be shown.
func shown(name string) string {
	const most = 64
	clean := strings.Map(func(r rune) rune {
		if r > ' ' && r < 0x7f {
			return r
		}
		return '?'
	}, name)
	if len(clean) > most {
		return clean[:most] + "…"
	}
	return clean
}

// together checks the variables against each other.
func (p *parser) together() {
	if (p.given["SLUICE_CONFIG_FILE"] == "") == (p.given["SLUICE_CONFIG_TABLE"] == "") {
		p.wrong("SLUICE_CONFIG_FILE", "or SLUICE_CONFIG_TABLE must be set, and not both")
	}
	if p.given["SLUICE_ALONE"] != "" && p.given["SLUICE_CONFIG_TABLE"] == "" {
		p.wrong("SLUICE_ALONE", "has no use without SLUICE_CONFIG_TABLE")
	}
	p.Homes = slices.DeleteFunc(p.Homes, func(c CellTable) bool { return c.Cell == p.Cell })
	if p.given["SLUICE_HOMES"] != "" && p.given["SLUICE_CONFIG_TABLE"] == "" {
		p.wrong("SLUICE_HOMES", "has no use without SLUICE_CONFIG_TABLE: a cell with a plans file is alone")
	}
	if p.given["SLUICE_HOMES"] == "" && p.given["SLUICE_HOME_DEADLINE"] != "" {
		p.wrong("SLUICE_HOME_DEADLINE", "has no use without SLUICE_HOMES")
	}
	if p.given["SLUICE_ISSUERS"] != "" && p.given["SLUICE_ISSUERS_FILE"] != "" {
		p.wrong("SLUICE_ISSUERS", "and SLUICE_ISSUERS_FILE must not both be set")
	}
	if !p.hasIssuers && p.given["SLUICE_CLAIMS"] != "" && !p.bad("SLUICE_ISSUERS") &&
		!p.bad("SLUICE_ISSUERS_FILE") {
		p.wrong("SLUICE_CLAIMS", "has no use without SLUICE_ISSUERS or SLUICE_ISSUERS_FILE")
	}
	p.aboutTokens()
	if p.given["SLUICE_REDIS"] == "" {
		for _, v := range p.variables() {
			if strings.HasPrefix(v.name, "SLUICE_REDIS_") && p.given[v.name] != "" {
				p.wrong(v.name, "has no use without SLUICE_REDIS")
			}
		}
		return
	}
	p.aboutRedis()
	p.Redis = &p.redis
}

// aboutTokens checks the issuers with the code that will use them.
func (p *parser) aboutTokens() {
	if !p.hasIssuers {
		return
	}
	where := "SLUICE_ISSUERS"
	if p.given[where] == "" {
		where = "SLUICE_ISSUERS_FILE"
	}
	if err := p.issuers.Check(); err != nil {
		p.wrong(where, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

func (p *parser) aboutRedis() {
	r := &p.redis
	if len(r.Addrs) > 1 && !r.Cluster {
		p.wrong("SLUICE_REDIS", "has several addresses, which only a cluster may have: set SLUICE_REDIS_CLUSTER, or "+
			"give the primary's alone")
	}
	iam := []string{"SLUICE_REDIS_IAM_CACHE", "SLUICE_REDIS_IAM_USER"}
	for _, name := range iam {
		if r.Auth == AuthIAM && p.given[name] == "" {
			p.wrong(name, "is missing, which SLUICE_REDIS_AUTH=iam needs")
		}
	}
	for _, name := range iam {
		if r.Auth != AuthIAM && p.given[name] != "" && !p.bad("SLUICE_REDIS_AUTH") {
			p.wrong(name, "has no use without SLUICE_REDIS_AUTH=iam")
		}
	}
	if r.Auth != AuthSecret && r.Secret != "" && !p.bad("SLUICE_REDIS_AUTH") {
		p.wrong("SLUICE_REDIS_SECRET", "has no use without SLUICE_REDIS_AUTH=secret")
	}
	if r.Auth != AuthNone && !r.TLS && !allLoopback(r.Addrs) && !p.bad("SLUICE_REDIS_TLS") {
		p.wrong("SLUICE_REDIS_TLS", "must be true with SLUICE_REDIS_AUTH: a password must not travel in clear")
	}
}
