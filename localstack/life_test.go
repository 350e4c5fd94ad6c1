package localstack_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/request/answer"
	"github.com/sluicelimits/sluice/localstack/stand"
)

// life is a tenant that the test follows in each cell.
type life struct {
	*testing.T

	stand             *stand.Stand
	plan, tenant, key string
	other, otherKey   string // another tenant of the same plan, which no change concerns
	period            time.Duration
	changes           []string // reasons of the changes to the tenant, in order
}

const (
	product = "GET /product/1" // has the limit few
	order   = "POST /orders"   // has the limit writes
)

// plans returns the tenant's plans file, in which the limit few has the given units.
func (l *life) plans(few int) string {
	return fmt.Sprintf(`
plans:
  - id: %[1]s
    limits:
      - { id: few, match: { methods: [GET], pathPattern: "/product/*" },
          tiers: [ { period: %[5]s, threshold: %[2]d } ] }
      - { id: writes, match: { methods: [POST], pathPattern: "/orders" }, tiers: [ { period: %[5]s, threshold: 8 } ] }
tenants: [ { id: %[3]s, plan: %[1]s }, { id: %[4]s, plan: %[1]s } ]
`, l.plan, few, l.tenant, l.other, l.period)
}

func (l *life) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// runCommand runs an operators' command that changes the tenant.
func (l *life) runCommand(args ...string) {
	l.Helper()
	l.changes = append(l.changes, strings.Join(args[:2], " "))
	sluice(l.T, l.stand, append(args, "--reason", l.changes[len(l.changes)-1])...)
}

// cells calls a function for each cell.
func (l *life) cells(f func(cell string)) {
	l.Helper()
	for _, c := range l.stand.Cells() {
		f(c.ID)
	}
}

// number returns the number in a header, or -1 if there is none.
func number(a *stand.Answer, name string) int64 {
	n, err := strconv.ParseInt(a.Header.Get(name), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// until waits until a cell answers a request of the tenant with the status and, if it is a denial, with the limit (0:
// any). It returns how many requests the cell admitted on the way, including that answer.
func (l *life) until(cell, request string, status int, limit int64) (admitted int) {
	l.Helper()
	waitFor(l.T, func(ctx context.Context) error {
		a, err := l.stand.Call(ctx, cell, request, l.key)
		if err != nil {
			return err
		}
		if a.Status == http.StatusOK {
			admitted++
		}
		if has := number(a, "X-RateLimit-Limit"); a.Status != status || limit != 0 && has != limit {
			return fmt.Errorf("%s: %s is answered %d with a limit of %d, want %d with %d: %s", cell, request, a.Status,
				has, status, limit, a.Body)
		}
		return nil
	})
	return admitted
}

// spend sends requests until a cell denies, which must be after exactly the given number of admitted ones, and by a
// limit of the given size. It returns the denial.
func (l *life) spend(cell, request, key, why string, want int, limit int64) *stand.Answer {
	l.Helper()
	for admitted := 0; ; admitted++ {
		a := call(l.T, l.stand, cell, request, key)
		switch {
		case a.Status == http.StatusOK && admitted < want:
		case a.Status != http.StatusTooManyRequests || admitted != want:
			l.Fatalf("%s: %s: want %d of %s to be admitted, and the one after %d of them is answered %d: %s", cell,
				why, want, request, admitted, a.Status, a.Body)
		case number(a, "X-RateLimit-Limit") != limit:
			l.Fatalf("%s: %s: %s is denied by a limit of %d, want %d", cell, why, request,
				number(a, "X-RateLimit-Limit"), limit)
		default:
			return a
		}
	}
}

// problem is the body of a denial.
type problem struct {
	Type         string   `json:"type"`
	Status       int      `json:"status"`
	Instance     string   `json:"instance"`
	Violated     []string `json:"violated-policies"`
	Binding      string   `json:"binding-policy"`
	Limit        int64    `json:"limit"`
	Remaining    int64    `json:"remaining"`
	RetryAfterMS int64    `json:"retry-after-ms"`
}

// denied checks everything that the denial of a limit tells the client.
func (l *life) denied(cell string, a *stand.Answer, limit int64) {
	l.Helper()
	var p problem
	if err := json.Unmarshal([]byte(a.Body), &p); err != nil || a.Header.Get("Content-Type") != answer.ContentType {
		l.Fatalf("%s: the body of a denial is not a problem: %v %v %s", cell, err, a.Header, a.Body)
	}
	if p.Type != answer.Limited.Type() || p.Status != http.StatusTooManyRequests || p.Binding != "few" ||
		!slices.Equal(p.Violated, []string{"few"}) ||
		p.Limit != limit || p.Remaining != 0 || p.Instance == "" {
		l.Errorf("%s: the problem is %+v, want that few, of %d, is used up", cell, p, limit)
	}
	if most := l.period.Milliseconds(); p.RetryAfterMS < 1 || p.RetryAfterMS > most {
		l.Errorf("%s: the denial says to wait %d ms, want 1..%d", cell, p.RetryAfterMS, most)
	}
	if s := number(a, "Retry-After"); s*1000 < p.RetryAfterMS || (s-1)*1000 >= p.RetryAfterMS {
		l.Errorf("%s: Retry-After is %d, and the body says %d ms", cell, s, p.RetryAfterMS)
	}
	if number(a, "X-RateLimit-Limit") != limit || number(a, "X-RateLimit-Remaining") != 0 ||
		number(a, "X-RateLimit-Reset") < 1 ||
		!strings.Contains(a.Header.Get("RateLimit"), `"few";r=0;t=`) ||
		!strings.Contains(a.Header.Get("RateLimit-Policy"), fmt.Sprintf(`"few";q=%d;w=%.0f`, limit,
			l.period.Seconds())) {
		l.Errorf("%s: the denial has the headers %v, want those of few with %d", cell, a.Header, limit)
	}
}

// Guarantees the life of a tenant through the deployment, in each cell: the gateway enforces what operators set with
// the command, with all headers and bodies; a change keeps what was used; a boost ends by itself; a suspended tenant
// and a revoked key are refused as documented; another tenant of the same plan is not affected; and the audit trail
// says who did it. It takes 25 s.
func TestTenantsLife(t *testing.T) {
	s := open(t)
	id := unique("life")
	l := &life{T: t, stand: s, plan: id, tenant: id + "-1", other: id + "-2", period: period()}
	apply(t, s, l.plans(8))
	l.key, l.otherKey = key(t, s, l.tenant), key(t, s, l.other)
	l.cells(func(cell string) { waitUntilKeyIsKnown(t, s, cell, l.key) })
	l.cells(func(cell string) { waitUntilKeyIsKnown(t, s, cell, l.otherKey) })

	l.cells(func(cell string) {
		if a := call(t, s, cell, product, l.otherKey); a.Status != 200 {
			t.Errorf("%s: the first request of the other tenant: status %d, body %s", cell, a.Status, a.Body)
		}
		l.spend(cell, order, l.key, "the plan's 8", 4, 4)
	})
	l.runCommand("boost", "add", l.tenant, "writes", "--factor", "2", "--for", "5m")
	l.cells(func(cell string) {
		l.spend(cell, order, l.key, "a boost of 2 after 8 were used", 4-l.until(cell, order, 200, 0), 8)
	})
	// in its place; nobody removes this one
	l.runCommand("boost", "add", l.tenant, "writes", "--factor", "2", "--for", "20s")

	l.enforces("the plan's 8", 8, 4, 4)
	apply(t, s, l.plans(12))
	l.enforces("the plan's 12 after 8", 12, 2-l.until("eu-1", product, 200, 0), 2-l.until("us-1", product, 200, 0))

	l.runCommand("tenant", "set", l.tenant, "--override",
		"{ id: few, tiers: [ { period: "+l.period.String()+", threshold: 16 } ] }")
	l.cells(func(cell string) {
		l.spend(cell, product, l.key, "the tenant's own 16 after 12", 2-l.until(cell, product, 200, 0), 8)
	})

	l.runCommand("tenant", "suspend", l.tenant)
	l.cells(func(cell string) {
		waitFor(t, func(ctx context.Context) error {
			a, err := s.Call(ctx, cell, product, l.key)
			// All denials by the authorizer of a REST API have the status of its gateway response. The problem in the
			// body has its own.
			var p problem
			if err == nil && (a.Status != http.StatusTooManyRequests || json.Unmarshal([]byte(a.Body), &p) != nil ||
				p.Type != answer.SuspendedTenant.Type() || p.Status != 403) {
				err = fmt.Errorf("%s: of a suspended tenant: %d %s", cell, a.Status, a.Body)
			}
			return err
		})
		if a := call(t, s, cell, "GET /orders", l.otherKey); a.Status != 200 {
			t.Errorf("%s: the other tenant, which is not suspended: status %d, body %s", cell, a.Status, a.Body)
		}
	})
	l.runCommand("tenant", "resume", l.tenant)
	l.cells(func(cell string) { l.until(cell, product, http.StatusTooManyRequests, 8) })

	l.changeCounters()
	l.revoked()
	l.refused()
	l.checkTrail()

	l.cells(func(cell string) {
		l.until(cell, order, http.StatusTooManyRequests, 4) // by itself the boost is over, which each cell had
		l.spend(cell, product, l.otherKey, "the other tenant, which has used one of the plan's 12", 5, 6)
	})
}

// enforces spends what is left of the limit few in each cell, and compares the denials with what sluice explain says.
func (l *life) enforces(why string, few int, left ...int) {
	l.Helper()
	var denials []*stand.Answer
	for i, c := range l.stand.Cells() {
		a := l.spend(c.ID, product, l.key, why, left[i], int64(few/len(left)))
		l.denied(c.ID, a, int64(few/len(left)))
		denials = append(denials, a)
	}
	l.compareExplain(few, denials)
}

// compareExplain compares what sluice explain says of the plans file with the denials of the cells: which limits apply,
// and their sizes. Each cell grants its share.
func (l *life) compareExplain(few int, denials []*stand.Answer) {
	l.Helper()
	file := filepath.Join(l.TempDir(), "plans.yaml")
	l.must(os.WriteFile(file, []byte(l.plans(few)), 0o600))
	var x struct {
		Limits []struct {
			ID, Status string
			Settings   []struct{ Name, Value string }
		}
	}
	l.must(json.Unmarshal([]byte(sluice(l.T, l.stand, "explain", "--plans", file, "--tenant", l.tenant, "--path",
		"/product/1", "--json")), &x))
	whole := int64(0)
	for _, limit := range x.Limits {
		for _, a := range denials {
			if applies, told := limit.Status == "applies", strings.Contains(a.Header.Get("RateLimit-Policy"),
				`"`+limit.ID+`";`); applies != told {
				l.Errorf("sluice explain: %s %s, and the gateway tells of %s", limit.ID, limit.Status,
					a.Header.Get("RateLimit-Policy"))
			}
		}
		for _, setting := range limit.Settings {
			if limit.Status == "applies" && setting.Name == "tiers[0].threshold" {
				_, err := fmt.Sscan(setting.Value, &whole)
				l.must(err)
			}
		}
	}
	sum := int64(0)
	for _, a := range denials {
		sum += number(a, "X-RateLimit-Limit")
	}
	if whole != int64(few) || sum != whole {
		l.Errorf("the limit few is %d in sluice explain and %d in the file, and the cells grant %d", whole, few, sum)
	}
}

// counters runs an operation on the tenant's limit few, and returns its result.
func (l *life) counters(c stand.Cell, does string, args ...string) (counter operate.Counter, operation string) {
	l.Helper()
	reason := does + " in " + c.ID
	var r operate.CountersResponse
	out := sluice(l.T, l.stand, append([]string{"counter", does, l.tenant, "few", "--path", "/product/1",
		"--ops-endpoint", l.stand.Ops(c.ID), "--region", c.Region,
		"--reason", reason, "--json"}, args...)...)
	l.must(json.Unmarshal([]byte(out), &r))
	if r.Cell != c.ID || r.Tenant != l.tenant || len(r.Counters) != 1 || r.Operation == "" {
		l.Fatalf("%s: %s says %s", c.ID, does, out)
	}
	l.waitForRecords("operations", r.Operation, []string{reason, reason})
	return r.Counters[0], r.Operation
}

// changeCounters changes counters through each cell's operators' API.
func (l *life) changeCounters() {
	l.Helper()
	for _, c := range l.stand.Cells() {
		if k, _ := l.counters(c, "peek"); k.Used != 8 || k.Remaining != 0 || k.Capacity != 8 {
			l.Errorf("%s: peek gives %+v, want 8 of 8 used", c.ID, k)
		}
		if k, _ := l.counters(c, "refund", "--units", "3"); k.UsedBefore == nil || *k.UsedBefore != 8 || k.Used != 5 {
			l.Errorf("%s: a refund of 3 gives %+v", c.ID, k)
		}
		l.spend(c.ID, product, l.key, "a refund of 3", 3-l.until(c.ID, product, 200, 0), 8)
		if k, _ := l.counters(c, "reset"); k.UsedBefore == nil || *k.UsedBefore != 8 || k.Used != 0 {
			l.Errorf("%s: a reset gives %+v", c.ID, k)
		}
		l.spend(c.ID, product, l.key, "a reset", 8-l.until(c.ID, product, 200, 0), 8)
	}
}

// revoked revokes a key of the tenant: requests with it get a 401, and those with another key do not.
func (l *life) revoked() {
	l.Helper()
	id := l.tenant + "-key"
	lost := strings.TrimSpace(sluice(l.T, l.stand, "key", "create", "--tenant", l.tenant, "--id", id, "--reason",
		"key create"))
	l.cells(func(cell string) { waitUntilKeyIsKnown(l.T, l.stand, cell, lost) })
	sluice(l.T, l.stand, "key", "revoke", id, "--reason", "key revoke")
	l.cells(func(cell string) {
		waitFor(l.T, func(ctx context.Context) error {
			a, err := l.stand.Call(ctx, cell, "GET /orders", lost)
			if err == nil && a.Status != http.StatusUnauthorized {
				err = fmt.Errorf("%s: with a revoked key: %d %s", cell, a.Status, a.Body)
			}
			return err
		})
		waitUntilKeyIsKnown(l.T, l.stand, cell, l.key)
	})
	l.waitForRecords("keys", id, []string{"key create", "key revoke"})
}

// refused makes calls of the operators' API without permission: they must change nothing.
func (l *life) refused() {
	l.Helper()
	version := func() int64 {
		var i control.Item
		l.must(json.Unmarshal([]byte(sluice(l.T, l.stand, "tenant", "get", l.tenant, "--json")), &i))
		return i.Version
	}
	was := version()
	request := &operate.TenantRequest{Tenant: l.tenant, Reason: "a call by somebody"}
	good := l.stand.Operator.Credentials
	for who, as := range map[string]aws.Credentials{
		"nobody":              {},
		"with an unknown key": {AccessKeyID: "AKIAUNKNOWN", SecretAccessKey: good.SecretAccessKey},
	} {
		to, err := l.stand.Admin(as)
		l.must(err)
		var said *operate.Error
		if _, err = client.Do(l.Context(), to, operate.Suspend, request); err == nil ||
			errors.As(err, &said) || !strings.Contains(err.Error(), "403") {
			l.Errorf("a call of the operators' API %s: %v, want the gateway's 403", who, err)
		}
	}
	if is := version(); is != was {
		l.Errorf("refused calls changed the tenant from version %d to %d", was, is)
	}
	to, err := l.stand.Admin(good) // the same call, signed: so it is not for another reason that those were refused
	l.must(err)
	request.Reason = "tenant suspend"
	if i, err := client.Do(l.Context(), to, operate.Suspend, request); err != nil ||
		i.Version != was+1 || i.Actor != l.stand.Operator.ARN {
		l.Errorf("the same call, signed: %+v %v", i, err)
	}
	l.changes = append(l.changes, request.Reason)
	l.runCommand("tenant", "resume", l.tenant)
}

// checkTrail checks that the audit trail of the tenant has every change that was made.
func (l *life) checkTrail() {
	l.Helper()
	l.waitForRecords("tenants", l.tenant, append([]string{"the stand's plans"}, l.changes...))
	l.waitForRecords("tenants", l.other, []string{"the stand's plans"})
}

// waitForRecords waits until the audit trail has the versions of an item, and fails the test unless each is by the
// operator and has the given reason.
func (l *life) waitForRecords(table, key string, reasons []string) {
	l.Helper()
	waitFor(l.T, func(ctx context.Context) error {
		out, err := l.stand.Sluice(ctx, "audit", "show", table+"/"+key, "--archive", "s3://"+l.stand.Bucket(), "--json")
		if err != nil {
			return err
		}
		var has []string
		inOrder := true // the archive gets versions in any order
		for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
			var r struct {
				Version       int64
				Actor, Reason string
				Error         string
			}
			if err := d.Decode(&r); err != nil {
				return err
			}
			if r.Error != "" || r.Actor != l.stand.Operator.ARN {
				l.Fatalf("on record of %s/%s is %+v, want it by %s", table, key, r, l.stand.Operator.ARN)
			}
			has = append(has, r.Reason)
			inOrder = inOrder && r.Version == int64(len(has))
		}
		if !inOrder || !slices.Equal(has, reasons) {
			return fmt.Errorf("on record of %s/%s are %q, want %q", table, key, has, reasons)
		}
		return nil
	})
}
