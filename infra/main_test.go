package infra_test

import (
	"archive/zip"
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra"
	"github.com/sluicelimits/sluice/infra/config"
)

var update = flag.Bool("update", false, "rewrite golden files; then read the diff")

// temporary is the folder for data that several tests use. templates is the folder in which CDK makes templates:
// SLUICE_TEMPLATES if it is set, where cfn-lint can read them later, or else temporary.
var temporary, templates string

// outdir returns a new folder for the templates of an app.
func outdir(tb testing.TB) *string {
	tb.Helper()
	dir, err := os.MkdirTemp(templates, "")
	if err != nil {
		tb.Fatal(err)
	}
	return &dir
}

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Fprintln(os.Stderr, "a short run makes no templates: that takes Node.js and minutes")
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	var err error
	if temporary, err = os.MkdirTemp("", "sluice-infra-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	templates = cmp.Or(os.Getenv("SLUICE_TEMPLATES"), temporary)
	code = m.Run()
	jsii.Close()
	if err := os.RemoveAll(temporary); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// template is the template of a stack, as CloudFormation gets it.
type template struct {
	Resources map[string]*resource
	Outputs   map[string]map[string]any
}

type resource struct {
	Type                string
	Properties          map[string]any
	DependsOn           []string
	DeletionPolicy      string
	UpdateReplacePolicy string
}

// world returns a deployment of two cells in two regions, with every setting that has an effect on a template.
func world(cells ...string) *config.Deployment {
	d := &config.Deployment{Control: config.Control{Region: "eu-west-1", Audit: config.Audit{Anchors: true}}}
	for _, id := range cells {
		region := "eu-west-1"
		if id == "us-1" {
			region = "us-east-1"
		}
		d.Cells = append(d.Cells, config.Cell{ID: id, Region: region, MaxInstances: 40, TrustedHops: 1, RetryJitter: 10,
			Claims: []string{"plan"}, PassDenials: []string{"a1b2c3"},
			Issuers: []config.Issuer{{Issuer: "https://id.example.com/", Audiences: []string{"api"},
				JWKSURL: "https://id.example.com/keys", AllTenants: true}}})
	}
	return d
}

// stubs returns a folder with a zip for each function, so that no test needs a build.
var stubs = sync.OnceValue(func() string { return bundles(elf.EM_AARCH64) })

// bundles returns a folder with a zip for each function. The header of its program is that of the given machine.
func bundles(machine elf.Machine) string {
	dir, err := os.MkdirTemp(temporary, "")
	if err != nil {
		panic(err)
	}
	for _, name := range slices.Concat(config.ControlFunctions(), config.CellFunctions(),
		[]string{config.Anchor, "worker"}) {
		if err := os.WriteFile(filepath.Join(dir, name+".zip"), zipped("bootstrap", program(machine)+name),
			0o600); err != nil {
			panic(err)
		}
	}
	return dir
}

// program returns the beginning of a program for a machine: identification, type and machine of an ELF header.
func program(machine elf.Machine) string {
	return elf.ELFMAG + "\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00" +
		string([]byte{byte(machine), byte(machine >> 8)})
}

func zipped(name, text string) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	f, err := z.Create(name)
	if err == nil {
		_, err = f.Write([]byte(text))
	}
	if err := errors.Join(err, z.Close()); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// synthesize makes the templates of a deployment. It returns them by the names of the stacks, with the text of the
// assembly's manifest.
func synthesize(d *config.Deployment) (raw map[string][]byte, manifest []byte, err error) {
	dir, err := os.MkdirTemp(templates, "")
	if err != nil {
		return nil, nil, err
	}
	app := awscdk.NewApp(&awscdk.AppProps{AnalyticsReporting: jsii.Bool(false), Outdir: &dir})
	if _, err := infra.NewStacks(app, d, stubs()); err != nil {
		return nil, nil, err
	}
	app.Synth(nil)
	files, err := filepath.Glob(filepath.Join(dir, "*.template.json"))
	if err != nil {
		return nil, nil, err
	}
	raw = map[string][]byte{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".template.json")
		if raw[name], err = os.ReadFile(file); err != nil {
			return nil, nil, err
		}
	}
	manifest, err = os.ReadFile(filepath.Join(dir, "manifest.json"))
	return raw, manifest, err
}

type synthesized struct {
	raw      map[string][]byte
	manifest []byte
	err      error
}

// made holds the templates of the world with the cells a-1 and us-1, which are made once for all tests.
var made = sync.OnceValue(func() synthesized {
	raw, manifest, err := synthesize(world("a-1", "us-1"))
	return synthesized{raw, manifest, err}
})

// copyTemplate returns a new copy of a template, which the caller may change.
func copyTemplate(t *testing.T, name string) *template {
	t.Helper()
	all := made()
	switch {
	case strings.HasPrefix(name, "sluice-cell-f-"):
		all = madeFull()
	case strings.HasPrefix(name, "sluice-cell-g-"):
		all = madeGiven()
	}
	if all.err != nil {
		t.Fatal(all.err)
	}
	return decode(t, all.raw[name])
}

func decode(t *testing.T, raw []byte) *template {
	t.Helper()
	var one template
	if err := json.Unmarshal(raw, &one); err != nil || len(one.Resources) == 0 {
		t.Fatalf("decode the template, of %d resources: %v", err, len(one.Resources))
	}
	return &one
}

// ofType returns the resources of a type, by logical id.
func (one *template) ofType(kind string) map[string]*resource {
	all := map[string]*resource{}
	for id, r := range one.Resources {
		if r.Type == kind {
			all[id] = r
		}
	}
	return all
}

// get returns the value at a path of keys and indices, or nil if there is none.
func get(v any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[step]
		case int:
			l, _ := v.([]any)
			if step >= len(l) {
				return nil
			}
			v = l[step]
		}
	}
	return v
}

func (r *resource) get(path ...any) any { return get(r.Properties, path...) }

// text returns a value with its intrinsic functions evaluated, in an example account: Fn::GetAtt gives
// ${LogicalID.Attribute}.
func (one *template) text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case map[string]any:
		if join, ok := v["Fn::Join"].([]any); ok && join[0] == "" {
			var b strings.Builder
			for _, part := range join[1].([]any) {
				b.WriteString(one.text(part))
			}
			return b.String()
		}
		if at, ok := v["Fn::GetAtt"].([]any); ok {
			return fmt.Sprintf("${%s.%s}", at[0], at[1])
		}
		switch ref, _ := v["Ref"].(string); ref {
		case "AWS::Partition":
			return "aws"
		case "AWS::AccountId":
			return "123456789012"
		case "AWS::URLSuffix":
			return "amazonaws.com"
		case "":
		default:
			return "${" + ref + "}"
		}
	}
	return fmt.Sprintf("?%v", v)
}

// list returns a value as a list. A value that is not a list becomes a list with one element.
func list(v any) []any {
	if l, ok := v.([]any); ok {
		return l
	}
	if v == nil {
		return nil
	}
	return []any{v}
}

func (one *template) texts(v any) []string {
	var all []string
	for _, each := range list(v) {
		all = append(all, one.text(each))
	}
	return all
}
