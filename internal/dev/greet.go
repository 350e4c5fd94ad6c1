package dev

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/devcells"
	"github.com/sluicelimits/sluice/internal/gateway"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

const maxTryTenants = 5

// attempt is an example command, and what it shows.
type attempt struct{ about, command string }

type attempts []attempt

func (t attempts) commands() (out []string) {
	for _, a := range t {
		out = append(out, a.command)
	}
	return out
}

// tryLines returns a curl command for each of the first tenants, and one that exceeds a limit. A command contains the
// key of an example tenant; the keys of other tenants are not known here, so their commands contain $KEY. at returns
// the URL to call for a tenant.
func tryLines(
	now devcells.Overview, keys []*plan.Key, anonymousPlan, base string, at func(*plan.Tenant) string,
) attempts {
	hashes := make(map[string]bool)
	withKey := make(map[string]bool)
	for _, k := range keys {
		hashes[k.Hash] = !k.Revoked
		withKey[k.Tenant] = withKey[k.Tenant] || !k.Revoked
	}
	var out attempts
	var loop *attempt
	tenants := 0
	for _, t := range now.Tenants {
		if tenants == maxTryTenants {
			break
		}
		if !withKey[t.ID] {
			continue
		}
		tenants++
		key := "$KEY"
		if k := identity.ExampleKey(t.ID); hashes[identity.HashKey(identity.DevPepper(), k)] {
			key = k
		}
		about := "tenant " + printable(t.ID) + ", plan " + t.Plan
		if t.Suspended {
			about += ", suspended"
		}
		if key == "$KEY" {
			about += " (put its key into KEY)"
		}
		header, base := `-H "X-API-Key: `+key+`"`, at(t)
		command := "curl -i " + header + " " + base + "/product/1"
		if i := slices.IndexFunc(out, func(a attempt) bool { return a.command == command }); i >= 0 {
			out[i].about += "; or " + about // only the key differs
		} else {
			out = append(out, attempt{about, command})
		}
		if !t.Suspended { // the last tenant wins: in the example plans it has the smallest limit
			loop = &attempt{"more calls than tenant " + printable(t.ID) + " may make: 200s, then 429s",
				"for i in 1 2 3 4 5 6 7 8; do curl -s -o /dev/null -w '%{http_code}\\n' " + header + " " + base +
					"/product/1; done"}
		}
	}
	switch {
	case anonymousPlan != "":
		out = append(out, attempt{"no key, plan " + anonymousPlan, "curl -i " + base + "/product/1"})
	case len(out) > 0:
		out = append(out, attempt{"no key: 401", "curl -i " + base + "/product/1"})
	}
	if loop != nil {
		out = append(out, *loop)
	}
	return out
}

// greet prints where everything is and what to try.
func (f *process) greet(w io.Writer) {
	cells := f.all()
	at := slices.IndexFunc(cells, func(c *servedCell) bool { return c.first })
	first := cells[at]
	base := first.url()
	to := cmp.Or(f.upstreams(), "a built-in echo (--upstream URL for your service)")
	var b strings.Builder
	fmt.Fprintf(&b, "Sluice listens on %s\n", base)
	if f.several() {
		for _, c := range cells {
			fmt.Fprintf(&b, "  cell       %s at %s\n", c.Name, c.url())
		}
	}
	fmt.Fprintf(&b, "  plans      %s\n  data       %s\n  upstream   %s\n", f.plansFrom(), f.dataIn(), to)
	switch {
	case f.pageOff:
	case f.Audience == gateway.Loopback && !reachesLoopback(first.listener.Addr()):
		b.WriteString("  live page  off: it is only shown at a loopback address (--live-page all: at any address)\n")
	default:
		fmt.Fprintf(&b, "  live page  %s/_sluice/\n", base)
	}
	f.greetOperators(&b, first)
	if !onlyLocal(first.listener.Addr()) && usesDevPepper(first.Keys(context.Background())) {
		b.WriteString("\nOther machines can reach this address, and anybody can compute keys under the built-in " +
			"pepper \"dev\":\ncreate keys with 'sluice key create --offline --pepper ID=FILE'.\n")
	}
	lines := first.lines
	if f.several() {
		now := f.clock.Now()
		lines = f.try(context.Background(), first, now, base,
			func(t *plan.Tenant) string { return f.granting(cells, t, now, base) })
	}
	if len(lines) == 0 {
		b.WriteString("\nEvery call is refused: the plans have no keys and no anonymousPlan. ")
		b.WriteString(f.firstKey(first))
	} else {
		b.WriteString("\nTry:\n")
	}
	for _, a := range lines {
		fmt.Fprintf(&b, "\n  # %s\n  %s\n", a.about, a.command)
	}
	_, _ = io.WriteString(w, b.String()) // a closed standard output is no reason not to serve
}

// firstKey returns commands that make a key for the first tenant and call with it. They work as printed.
func (f *process) firstKey(first *servedCell) string {
	if f.operators.refuses() != "" {
		return "Add keys to the plans.\n"
	}
	tenant := "T"
	if all := first.Overview(context.Background(), f.clock.Now(), 1).Tenants; len(all) > 0 {
		tenant = all[0].ID
	}
	base := first.url()
	return "Create one, and call with it; it reaches the cells within about a second:\n\n" +
		"  KEY=$(" + programName(os.Args[0], exec.LookPath) + " key create --tenant " + printable(tenant) +
		" --reason 'first key'" + endpointFlag(base) + ")\n" +
		`  curl -i -H "X-API-Key: $KEY" ` + base + "/product/1\n"
}

// programName returns how a shell in the same folder starts this program: by its name if lookPath finds the name in
// PATH, and otherwise by 'go run' or the path that started this process.
func programName(started string, lookPath func(string) (string, error)) string {
	const name = "sluice"
	_, err := lookPath(name)
	switch {
	case err == nil || filepath.Base(started) != name || strings.ContainsAny(started, " \t\n'\"\\$`*?[]();&|<>#~"):
		return name
	case strings.Contains(started, "/go-build"): // where 'go run' puts a program
		return "go run ./cmd/sluice"
	}
	return started
}

// greetOperators prints how operators' commands find this process. It does not print the token itself, since the output
// of terminals may be recorded.
func (f *process) greetOperators(w io.Writer, first *servedCell) {
	if why := f.operators.refuses(); why != "" {
		fmt.Fprintf(w, "  operate    off: %s\n", why)
		return
	}
	fmt.Fprintf(w, "  operate    %s plan, tenant, key, boost, cell …%s\n",
		programName(os.Args[0], exec.LookPath), endpointFlag(first.url()))
	fmt.Fprintf(w, "  token      in the first line of %s, for curl\n", f.operators.fileFor(first.listener.Addr()))
}

// granting returns the URL of the first cell that grants a part of every limit of the tenant; none if no cell does. A
// cell that the tenant is not pinned to grants nothing. A sliding_log that is too small to be divided is granted by one
// cell only.
func (f *process) granting(cells []*servedCell, t *plan.Tenant, now time.Time, none string) string {
	for _, c := range cells {
		view, _ := c.Reader.Begin(context.Background(), now)
		if own, err := view.Tenant(context.Background(), t.ID); err == nil && own != nil &&
			!own.Limits(now).HasWithheld() {
			return c.url()
		}
	}
	return none
}

// plansFrom describes where the plans come from.
func (f *process) plansFrom() string {
	switch {
	case len(f.Plans) > 0:
		return f.plans.Name()
	case f.plans != nil:
		return "example plans (start with --plans FILE to use yours)"
	}
	return "those of the data folder"
}

// dataIn describes where the control tables and the audit trail are kept.
func (f *process) dataIn() string {
	if f.Data == "" {
		return "in memory: operators' changes are lost at the end (--data DIR keeps them, and the audit trail)"
	}
	return f.Data
}

// endpointFlag returns the flag with which operators' commands find this process; "" if they need none.
func endpointFlag(base string) string {
	if endpoint := base + AdminPath; endpoint != DefaultEndpoint {
		return " --endpoint " + endpoint
	}
	return ""
}

func usesDevPepper(keys []*plan.Key) bool {
	for _, k := range keys {
		if k.Pepper == identity.DevPepperID && !k.Revoked {
			return true
		}
	}
	return false
}

func onlyLocal(addr net.Addr) bool {
	a, err := netip.ParseAddrPort(addr.String())
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// baseURL returns the URL of a listener for a browser on this machine.
func baseURL(addr net.Addr) string {
	a, err := netip.ParseAddrPort(addr.String())
	if err != nil || a.Addr().IsUnspecified() {
		_, port, _ := net.SplitHostPort(addr.String())
		return "http://localhost:" + port
	}
	return "http://" + a.String()
}

// printable returns an id that is safe to print on a terminal: quoted if it contains a control character.
func printable(id string) string {
	for _, r := range id {
		if !strconv.IsPrint(r) {
			return strconv.QuoteToASCII(id)
		}
	}
	return id
}
