package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/textproto"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/configfile/configyaml"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/plan"
	"github.com/sluicelimits/sluice/internal/plan/route"
)

const explainLong = `Explain what a request is charged: which limits apply, and to which counter each
charges how many units; which limits do not apply, and why; where each value of a limit comes from.
Nothing is counted. The command reads the configuration from the files of --plans. Without --plans, it
reads what is stored at the admin endpoint, with the overrides and boosts of the tenant.

Without --tenant the request has no credential, and gets the anonymousPlan. docs/plans.md says what
the states of limits mean.`

const explainExample = `  sluice explain --tenant acme --method PUT --path /v1/organizations/7/product/1
  sluice explain --plans plans.yaml --tenant acme --path '/product/%31' --subject ci --header 'x-query-cost: 25'`

// explainFlags is the command line of explain.
type explainFlags struct {
	remote
	plans                     []string
	tenant, method, path      string
	at                        time.Time
	subject, apiKey, ip       string
	claims, headers, costs    []string
	claimsByName, headersHere map[string]string
	costsByUnit               map[string]int64
}

func newExplainCommand() *cobra.Command {
	var f explainFlags
	c := &cobra.Command{
		Use:     "explain",
		Short:   "Show which limits apply to a request, why, and where each value comes from",
		Long:    explainLong,
		Example: explainExample,
		RunE:    func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	f.flags(c)
	flags := c.Flags()
	flags.StringArrayVar(&f.plans, "plans", nil, "plans `FILE`, or - for standard input; may be repeated (default: "+
		"what is stored at the admin endpoint)")
	flags.StringVar(&f.tenant, "tenant", "", "`ID` of the tenant (default: the request has no credential)")
	flags.StringVar(&f.method, "method", "GET", "HTTP `METHOD`")
	flags.StringVar(&f.path, "path", "", "request `PATH`, as it is sent")
	timeFlag(flags, &f.at, "at", "`TIME` of the request, such as 2026-12-24T00:00:00Z (default: now)")
	flags.StringVar(&f.subject, "subject", "", "`SUBJECT` that acts inside the tenant: a user, a machine")
	flags.StringVar(&f.apiKey, "api-key", "", "`ID` of the API key, not the key itself")
	flags.StringVar(&f.ip, "ip", "", "source `ADDRESS` of the request")
	flags.StringArrayVar(&f.claims, "claim", nil, "claim of the token, `NAME=VALUE`; may be repeated")
	flags.StringArrayVar(&f.costs, "cost", nil, "cost of the request, `UNIT=N` such as tokens=1200; may be repeated "+
		"(default: what the plan says)")
	flags.StringArrayVar(&f.headers, "header", nil, "header of the request, `NAME:VALUE`; may be repeated")
	return c
}

// explanation is the output of --json.
type explanation struct {
	Tenant    string        `json:"tenant,omitempty"`
	Plan      string        `json:"plan,omitempty"`
	Suspended bool          `json:"suspended"`
	Method    string        `json:"method"`
	Path      string        `json:"path"`
	Readings  []string      `json:"readings"` // every form of the path that patterns are matched with
	Ambiguous bool          `json:"ambiguous"`
	At        time.Time     `json:"at"`
	Routed    bool          `json:"routed"` // false if no declared route matches: the local gateway answers 404
	Outcome   string        `json:"outcome"`
	IPLimits  []verdictJSON `json:"ip_limits"`
	Limits    []verdictJSON `json:"limits"`
}

type verdictJSON struct {
	ID       string       `json:"id"`
	Status   plan.Status  `json:"status"`
	Why      string       `json:"why"`
	Counter  string       `json:"counter,omitempty"` // if the limit is charged: which of its counters
	Cost     int64        `json:"cost,omitempty"`    // if the limit is charged: in its unit
	Unit     string       `json:"unit,omitempty"`    // if it is not requests
	Settings []plan.Value `json:"settings"`
}

func (f *explainFlags) run(c *cobra.Command) error {
	if err := f.check(); err != nil {
		return err
	}
	var config *plan.Config
	var err error
	if len(f.plans) > 0 {
		config, err = loadPlans(c, f.plans)
	} else if config, err = f.stored(c); err != nil {
		err = f.failed(c, err)
	}
	if err != nil {
		return err
	}
	x, err := f.explain(config, timeOrNow(f.at))
	if err != nil {
		return err
	}
	if f.json {
		return writeJSON(c.OutOrStdout(), x)
	}
	return x.write(c.OutOrStdout())
}

// stored reads the configuration that is stored at the admin endpoint: all plans and settings, and the tenant.
func (f *explainFlags) stored(c *cobra.Command) (*plan.Config, error) {
	to, err := f.connect(c)
	if err != nil {
		return nil, err
	}
	items, damaged, err := listAll(c.Context(), to, control.Plans)
	if err == nil {
		err = writeDamaged(c.ErrOrStderr(), damaged)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; --plans names files to explain by instead", err)
	}
	if f.tenant != "" {
		tenant, err := client.Do(c.Context(), to, operate.Get,
			&operate.GetRequest{Table: control.Tenants, Key: f.tenant})
		if err != nil {
			return nil, err
		}
		if !tenant.Deleted {
			items = append(items, tenant)
		}
	}
	file := map[string]any{}
	var plans, tenants []json.RawMessage
	for _, i := range items {
		switch d, _ := operate.DocumentOf(i.Table, i.Key, nil); d.Kind {
		case plan.KindPlan:
			plans = append(plans, i.Body)
		case plan.KindTenant:
			tenants = append(tenants, i.Body)
		case plan.KindSettings:
			if err := json.Unmarshal(i.Body, &file); err != nil {
				return nil, fmt.Errorf("the stored settings: %w", err)
			}
			delete(file, "id")
		default: // keys, and the documents of cells, say nothing of limits
		}
	}
	file["plans"], file["tenants"] = plans, tenants
	text, err := json.Marshal(file)
	if err != nil {
		return nil, err
	}
	return plan.Parse(configyaml.Source("stored configuration", text))
}

// check reads the command line.
func (f *explainFlags) check() error {
	switch {
	case f.path == "":
		return usagef("--path is missing: give the path of the request, such as /product/1")
	case f.method == "" || strings.ContainsAny(f.method, " \t\r\n/"):
		return usagef("--method %q is not an HTTP method", f.method)
	}
	if f.ip != "" {
		if _, err := netip.ParseAddr(f.ip); err != nil {
			return usagef("--ip %q is not an IP address", f.ip)
		}
	}
	f.claimsByName, f.headersHere = map[string]string{}, map[string]string{}
	for _, text := range f.claims {
		name, v, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return usagef("--claim %q is not NAME=VALUE", text)
		}
		f.claimsByName[name] = v
	}
	f.costsByUnit = map[string]int64{}
	for _, text := range f.costs {
		unit, number, _ := strings.Cut(text, "=")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return usagef("--cost %q is not UNIT=N with a whole number N", text)
		}
		f.costsByUnit[unit] = n
	}
	if err := plan.CheckCosts(0, f.costsByUnit); err != nil {
		return usagef("--cost: %w", err)
	}
	for _, text := range f.headers {
		name, v, ok := strings.Cut(text, ":")
		if !ok || name == "" {
			return usagef("--header %q is not NAME:VALUE", text)
		}
		f.headersHere[textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))] = strings.TrimSpace(v)
	}
	return nil
}

func (f *explainFlags) explain(config *plan.Config, at time.Time) (*explanation, error) {
	path := route.Clean(f.path)
	x := &explanation{
		Tenant: f.tenant, Method: f.method, Path: f.path, Readings: path.Forms(), Ambiguous: path.Ambiguous(),
		At: at.UTC(), Routed: config.Routed(f.method, &path), IPLimits: []verdictJSON{}, Limits: []verdictJSON{},
	}
	a := &plan.Attributes{
		Method: f.method, Path: &path, Subject: f.subject, APIKey: f.apiKey, IP: f.ip,
		Claim:  func(name string) (string, bool) { v, ok := f.claimsByName[name]; return v, ok },
		Header: func(name string) (string, bool) { v, ok := f.headersHere[name]; return v, ok },
	}
	set, err := f.owner(config, x, at)
	if err != nil {
		return nil, err
	}
	x.IPLimits = verdicts(config.IPLimits().Explain(a), "one for the address")
	a.Costs = f.costsByUnit // ipLimits are charged what they say themselves
	if set != nil && f.tenant != "" {
		x.Limits = verdicts(set.Explain(a), "one for the tenant")
	} else if set != nil {
		x.Limits = verdicts(set.Explain(a), "one for anonymous calls")
	}
	x.Outcome = x.outcome(set != nil || identifiesNobody(config))
	return x, nil
}

// owner returns the limits of the tenant, or those of calls without a credential; nil if these have none.
func (f *explainFlags) owner(config *plan.Config, x *explanation, at time.Time) (*plan.Set, error) {
	if f.tenant == "" {
		x.Plan = config.AnonymousPlan()
		return config.Anonymous(), nil
	}
	t, err := findTenant(config, f.tenant)
	if err != nil {
		return nil, err
	}
	x.Plan, x.Suspended = t.Plan, t.Suspended
	return t.Limits(at), nil
}

// identifiesNobody reports whether the files have no keys, plans and tenants. Then callers are not identified, and only
// ipLimits limit calls.
func identifiesNobody(config *plan.Config) bool {
	return len(config.Keys()) == 0 && len(config.Plans()) == 0 && len(config.Tenants()) == 0
}

func (x *explanation) outcome(known bool) string {
	charged := 0
	for _, v := range append(x.IPLimits, x.Limits...) {
		if v.Status == plan.Applies {
			charged++
		}
	}
	switch {
	case !x.Routed && len(x.Readings) > 1:
		return "some reading of the path has no declared route: the local gateway answers 404, after ipLimits"
	case !x.Routed:
		return "no declared route: the local gateway answers 404, after ipLimits"
	case !known:
		return "no credential and no anonymousPlan: 401, after ipLimits"
	case x.Suspended:
		return "the tenant is suspended: 403, after ipLimits"
	case charged == 0:
		return "no limit applies to the request"
	}
	return "decided by " + count(charged, "limit")
}

// verdicts converts verdicts for the output. whole names the counter of a limit that has one counter per owner.
func verdicts(all []plan.Verdict, whole string) []verdictJSON {
	out := make([]verdictJSON, len(all))
	for i, v := range all {
		out[i] = verdictJSON{ID: v.Limit.Limit.ID, Status: v.Status, Why: v.Why, Settings: v.Limit.Values()}
		out[i].Unit = v.Limit.Limit.OtherUnit()
		if v.Charge.Limit != nil {
			out[i].Counter, out[i].Cost = counterOf(&v.Charge, whole), v.Charge.Cost
		}
	}
	return out
}

// counterOf names a counter for the output.
func counterOf(c *limit.Charge, whole string) string {
	switch c.Value.Kind {
	case limit.NoValue:
		return whole
	case limit.ValueAbsent:
		return c.Limit.Per + " (absent)"
	default:
		return c.Limit.Per + " " + strconv.Quote(c.Value.Text)
	}
}

func (x *explanation) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	owner := "no credential"
	if x.Tenant != "" {
		owner = "tenant " + shown(x.Tenant)
	}
	if x.Plan != "" {
		owner += ", plan " + x.Plan
	}
	fmt.Fprintf(table, "Owner\t%s\n", owner)
	fmt.Fprintf(table, "Request\t%s %s\n", shown(x.Method), shown(x.Path))
	for i, r := range x.Readings {
		if len(x.Readings) > 1 || r != x.Path {
			fmt.Fprintf(table, "Reading %d\t%s\n", i+1, shown(r))
		}
	}
	if x.Ambiguous {
		fmt.Fprintf(table, "Readings\ttoo many: the path matches every pattern\n")
	}
	fmt.Fprintf(table, "Time\t%s\n", x.At.Format(time.RFC3339))
	fmt.Fprintf(table, "Outcome\t%s\n", x.Outcome)
	err := table.Flush()
	for _, part := range []struct {
		title string
		all   []verdictJSON
	}{{"Before authentication (ipLimits)", x.IPLimits}, {"Limits of the plan", x.Limits}} {
		if len(part.all) > 0 {
			err = errors.Join(err, writeVerdicts(w, part.title, part.all))
		}
	}
	return err
}

// writeVerdicts prints what each limit does. Then it prints the settings of the limits that are charged.
func writeVerdicts(w io.Writer, title string, all []verdictJSON) error {
	var rows, settings [][]string
	for _, v := range all {
		if v.Cost == 0 {
			rows = append(rows, []string{v.ID, string(v.Status), "", "", v.Why})
			continue
		}
		cost := strings.TrimSpace(strconv.FormatInt(v.Cost, 10) + " " + v.Unit)
		rows = append(rows, []string{v.ID, string(v.Status), cost, v.Counter, v.Why})
		for _, s := range v.Settings {
			settings = append(settings, []string{v.ID, s.Name, s.Text, s.Origin.String()})
		}
	}
	fmt.Fprintf(w, "\n%s\n", title)
	if err := table(w, "LIMIT STATUS COST COUNTER WHY", rows); err != nil || len(settings) == 0 {
		return err
	}
	fmt.Fprintln(w)
	return table(w, "LIMIT SETTING VALUE FROM", settings)
}
