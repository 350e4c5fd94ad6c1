package environ

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// variable is a setting. Its read function stores the value, or returns what is wrong with it without repeating the
// value.
type variable struct {
	name      string
	otherwise string // the value if it is not set
	required  bool
	text      string // for the table in the documentation
	read      func(value string) (wrong string)
}

// Bounds of what is read.
const (
	maxInstances   = 1_000_000
	maxHops        = 16 // identity.MaxHops, whose package is not linked
	maxJitter      = 100
	minDeadline    = time.Millisecond
	maxDeadline    = 5 * time.Second // of an answer: API Gateway waits longer, but people do not
	maxPassDenials = 100
	maxClaims      = 16
	maxAddrs       = 100
)

// shape describes which texts a value may be: ASCII letters, digits and further characters. A regular expression would
// be compiled at each cold start.
type shape struct {
	further     string
	least, most int // characters
}

var (
	cellName   = shape{"._-", 1, 64}
	tableName  = shape{"_.:/-", 3, 1024} // or an ARN
	secretName = shape{"/_+=.@:-", 1, 2048}
	apiID      = shape{"", 1, 64}
	stageName  = shape{"_-", 1, 128} // of a REST API
	metricName = shape{"._#/:-", 1, 255}
	cacheName  = shape{"._-", 1, 128}
	configID   = shape{"", 4, 7}                                    // of AppConfig
	claimName  = shape{"!\"#$%&'()*+-./:;<=>?@[\\]^_`{|}~", 1, 256} // no comma, because commas separate claims
)

func (s shape) fits(v string) bool {
	for _, c := range []byte(v) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte(s.further, c) < 0 {
			return false
		}
	}
	return len(v) >= s.least && len(v) <= s.most
}

// variables returns the variables of the authorizer, in the order of the documentation.
func (p *parser) variables() []variable {
	return []variable{
		{"SLUICE_CELL", "", true,
			"The cell's id. Metrics have it, and `cells:` of a tenant names it.",
			func(v string) string { return match(&p.Cell, v, cellName, "1 to 64 of A-Z a-z 0-9 . _ -") }},
		{"SLUICE_CONFIG_FILE", "", false,
			"A plans file beside `bootstrap` in the zip, in JSON. Give either this or the next variable.",
			func(v string) string {
				if !fs.ValidPath(v) || v == "." {
					return "must be a path inside the bundle, without a slash in front and without . and .."
				}
				p.ConfigFile = v
				return ""
			}},
		{"SLUICE_CONFIG_TABLE", "", false, "The cell's config table, by name or ARN.",
			func(v string) string { return match(&p.ConfigTable, v, tableName, "a table's name or ARN") }},
		{"SLUICE_ALONE", "false", false,
			"With a config table: `true` if there is no other cell; see [below](#one-cell-and-several).",
			func(v string) string { return boolean(&p.Alone, v) }},
		{"SLUICE_COUNTERS_TABLE", "", true,
			"The DynamoDB table with the counters of quotas; in a small cell, those of everything but " +
				"`ipLimits`.",
			func(v string) string {
				return match(&p.CountersTable, v, tableName, "a table's name or ARN")
			}},
		{"SLUICE_DYNAMODB_DEADLINE", "100ms", false,
			"How long a decision waits for DynamoDB. A read of the configuration waits as long, but not " +
				"less than 100 ms and not more than 1 s.",
			func(v string) string { return deadline(&p.DynamoDBDeadline, v) }},
		{"SLUICE_HOMES", "", false,
			"The counters tables of the other cells, separated by commas: `us-1=` and the name or ARN of " +
				"the table; see [below](#quotas-of-other-cells). An entry for the cell itself is ignored, so " +
				"all cells can have the same value.",
			func(v string) string { return cells(&p.Homes, v, "counters") }},
		{"SLUICE_HOME_DEADLINE", "500ms", false,
			"How long a decision waits for the counters table of another cell. A new connection needs three " +
				"round trips.",
			func(v string) string { return deadline(&p.HomeDeadline, v) }},
		{"SLUICE_SECRET", "", true,
			"The secret with the peppers, the key for addresses, and Redis's password: its name or ARN.",
			func(v string) string { return match(&p.Secret, v, secretName, "a secret's name or ARN") }},
		{"SLUICE_REDIS", "", false,
			"`host:port` of the primary, or of some nodes of a cluster, separated by commas. If it is not " +
				"set, the cell is a small cell.",
			func(v string) string { return addresses(&p.redis.Addrs, v) }},
		{"SLUICE_REDIS_CLUSTER", "false", false, "`true` in cluster mode.",
			func(v string) string { return boolean(&p.redis.Cluster, v) }},
		{"SLUICE_REDIS_TLS", "true", false, "`false` connects in plain text.",
			func(v string) string { return boolean(&p.redis.TLS, v) }},
		{"SLUICE_REDIS_AUTH", "none", false,
			"`none`, `secret` (user and password are in a secret), or `iam` (by the function's role).",
			func(v string) string {
				way := slices.Index([]string{"none", "secret", "iam"}, v)
				if way < 0 {
					return "must be none, secret or iam"
				}
				p.redis.Auth = Auth(way)
				return ""
			}},
		{"SLUICE_REDIS_SECRET", "", false,
			"With `secret`: the name or ARN of the secret with Redis's user and password. If it is not set, " +
				"they are in `SLUICE_SECRET`.",
			func(v string) string { return match(&p.redis.Secret, v, secretName, "a secret's name or ARN") }},
		{"SLUICE_REDIS_IAM_CACHE", "", false, "With `iam`: the replication group's id.",
			func(v string) string {
				return match(&p.redis.Cache, v, cacheName, "a replication group's id")
			}},
		{"SLUICE_REDIS_IAM_USER", "", false, "With `iam`: the ElastiCache user.",
			func(v string) string {
				return match(&p.redis.User, v, cacheName, "the id of an ElastiCache user")
			}},
		{"SLUICE_REDIS_DEADLINE", "8ms", false, "How long a decision waits for Redis.",
			func(v string) string { return deadline(&p.redis.Deadline, v) }},
		{"SLUICE_ISSUERS", "", false,
			"Who may issue JWTs: a JSON array, see [below](#issuers). If it is not set, no JWT is accepted.",
			func(v string) string { return p.readIssuers(strings.NewReader(v)) }},
		{"SLUICE_ISSUERS_FILE", "", false,
			"The issuers in a file beside `bootstrap`, because all variables together may have 4 KB only.",
			func(v string) string { return p.readIssuersFile(v) }},
		{"SLUICE_CLAIMS", "", false,
			"The claims that limits name in `per: claim:…`, separated by commas.",
			func(v string) string {
				return list(&p.Claims, v, claimName, maxClaims, "names of claims, separated by commas")
			}},
		{"SLUICE_TRUSTED_HOPS", "0", false,
			"How many proxies of your own are in front of the API. The API itself does not count. A " +
				"client's address is the entry of `X-Forwarded-For` that the outermost proxy wrote. Above 0, " +
				"close every way around the proxies, such as the default endpoint of the API: a client that " +
				"takes such a way can choose that entry.",
			func(v string) string { return integer(&p.TrustedHops, v, 0, maxHops) }},
		{"SLUICE_RETRY_JITTER", "0", false,
			"By how many percent the waits in answers are lengthened at most, at random.",
			func(v string) string { return integer(&p.RetryJitter, v, 0, maxJitter) }},
		{"SLUICE_PASS_DENIALS", "", false,
			"Ids of HTTP and WebSocket APIs, separated by commas. Their denied requests are passed on to " +
				"Sluice's middleware in the backend. **A backend without that middleware serves them, also for " +
				"callers without a credential.**",
			func(v string) string {
				return list(&p.PassDenials, v, apiID, maxPassDenials, "ids of APIs, separated by commas")
			}},
		{"SLUICE_LEASES", "true", false, "`false` asks the stores for each decision.",
			func(v string) string { return boolean(&p.Leases, v) }},
		{"SLUICE_MAX_INSTANCES", "1000", false,
			"The function's reserved concurrency. Limits are divided by it while a store is away, if the " +
				"instance count is not known.",
			func(v string) string { return integer(&p.MaxInstances, v, 1, maxInstances) }},
		{"SLUICE_KILL_SWITCH", "", false,
			"`application/environment/profile`: the ids, in AppConfig, of the configuration with the mode " +
				"of the cell's limits; see [below](#the-kill-switch). If it is not set, limits are enforced.",
			func(v string) string { return appConfig(&p.KillSwitch, v) }},
		{"SLUICE_METRICS_NAMESPACE", "Sluice", false, "The namespace of the metrics in CloudWatch.",
			func(v string) string { return namespace(&p.MetricsNamespace, v) }},
		{"SLUICE_LOG_LEVEL", "info", false, "`debug`, `info`, `warn` or `error`.",
			func(v string) string { return level(&p.LogLevel, v) }},
	}
}

func markdown(variables []variable) string {
	var b strings.Builder
	b.WriteString("| variable | default | |\n|---|---|---|\n")
	for _, v := range variables {
		otherwise := ""
		switch {
		case v.required:
			otherwise = "required"
		case v.otherwise != "":
			otherwise = "`" + v.otherwise + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.name, otherwise, v.text)
	}
	return b.String()
}

func match(to *string, v string, of shape, want string) string {
	if !of.fits(v) {
		return "must be " + want
	}
	*to = v
	return ""
}

func boolean(to *bool, v string) string {
	switch v {
	case "true":
		*to = true
	case "false":
		*to = false
	default:
		return "must be true or false"
	}
	return ""
}

func integer(to *int, v string, least, most int) string {
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		return fmt.Sprintf("must be a whole number, %d to %d", least, most)
	}
	*to = n
	return ""
}

func deadline(to *time.Duration, v string) string {
	d, err := time.ParseDuration(v)
	if err != nil || d < minDeadline || d > maxDeadline {
		return fmt.Sprintf("must be a time such as 8ms, %s to %s", minDeadline, maxDeadline)
	}
	*to = d
	return ""
}

func list(to *[]string, v string, of shape, most int, want string) string {
	var all []string
	for item := range strings.SplitSeq(v, ",") {
		item = strings.TrimSpace(item)
		if !of.fits(item) {
			return "must be " + want
		}
		if slices.Contains(all, item) {
			return fmt.Sprintf("has its entry %d twice", slices.Index(all, item)+1)
		}
		all = append(all, item)
	}
	if len(all) > most {
		return fmt.Sprintf("has %d entries, want at most %d", len(all), most)
	}
	*to = all
	return ""
}

func appConfig(to **AppConfig, v string) string {
	ids := strings.Split(v, "/")
	wrong := len(ids) != 3 || slices.ContainsFunc(ids,
		func(id string) bool { return !configID.fits(id) || id != strings.ToLower(id) })
	if wrong {
		return "must be application/environment/profile, each an id of AppConfig: 4 to 7 of a-z 0-9"
	}
	*to = &AppConfig{Application: ids[0], Environment: ids[1], Profile: ids[2]}
	return ""
}

func addresses(to *[]string, v string) string {
	var all []string
	for a := range strings.SplitSeq(v, ",") {
		a = strings.TrimSpace(a)
		host, port, err := net.SplitHostPort(a)
		n, bad := strconv.ParseUint(port, 10, 16)
		if err != nil || bad != nil || n == 0 || host == "" || strings.ContainsAny(host, "@/?# \t") {
			return "must be host:port, several separated by commas"
		}
		all = append(all, a)
	}
	if len(all) > maxAddrs {
		return fmt.Sprintf("has %d addresses, want at most %d", len(all), maxAddrs)
	}
	*to = all
	return ""
}

func allLoopback(addrs []string) bool {
	return !slices.ContainsFunc(addrs, func(a string) bool {
		host, _, _ := net.SplitHostPort(a)
		ip, err := netip.ParseAddr(host)
		return host != "localhost" && (err != nil || !ip.IsLoopback())
	})
}

func namespace(to *string, v string) string {
	if strings.HasPrefix(v, "AWS/") {
		return "must not begin with AWS/"
	}
	return match(to, v, metricName, "1 to 255 of A-Z a-z 0-9 . _ # / : -")
}

func level(to *slog.Level, v string) string {
	i := slices.Index([]string{"debug", "info", "warn", "error"}, v)
	if i < 0 {
		return "must be debug, info, warn or error"
	}
	*to = []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}[i]
	return ""
}

// readIssuers reads the issuers of a variable or a file.
func (p *parser) readIssuers(from io.Reader) (wrong string) {
	if err := p.issuers.Read(from); err != nil {
		return err.Error()
	}
	p.hasIssuers = true
	return ""
}

// readIssuersFile reads issuers from a file of the bundle.
func (p *parser) readIssuersFile(name string) (wrong string) {
	if !fs.ValidPath(name) || name == "." {
		return "must be a path inside the bundle, without a slash in front and without . and .."
	}
	f, err := p.bundle.Open(name)
	if at := new(fs.PathError); errors.As(err, &at) {
		err = at.Err // without the name of the file
	}
	if err != nil {
		return "names a file that cannot be read: " + err.Error()
	}
	defer func() { _ = f.Close() }() // the file is only read
	return p.readIssuers(f)
}
