package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/config"
	"github.com/sluicelimits/sluice/internal/testkit/apigateway"
	"github.com/sluicelimits/sluice/internal/testkit/apigateway/template"
)

var update = flag.Bool("update", false, "rewrite golden files; then read the diff")

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		fmt.Fprintln(os.Stderr, "a short run makes no templates: that takes Node.js and minutes")
		return
	}
	code := m.Run()
	jsii.Close()
	os.Exit(code)
}

const deployment = `
prefix: acme
control: { region: eu-west-1 }
cells:
  - { id: eu-1, region: eu-west-1 }
  - { id: us-1, region: us-east-1 }
`

// made holds the templates of the deployment, by the names of the stacks.
var made = sync.OnceValues(func() (map[string][]byte, error) {
	dir, err := os.MkdirTemp("", "sluice-sample-test-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	d, err := config.Read("deployment.yaml", []byte(deployment))
	if err != nil {
		return nil, err
	}
	if err := synth(awscdk.NewApp(&awscdk.AppProps{AnalyticsReporting: jsii.Bool(false), Outdir: &dir}),
		d); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.template.json"))
	if err != nil {
		return nil, err
	}
	all := make(map[string][]byte)
	for _, file := range files {
		if all[strings.TrimSuffix(filepath.Base(file), ".template.json")], err = os.ReadFile(file); err != nil {
			return nil, err
		}
	}
	return all, nil
})

func read(t *testing.T) map[string][]byte {
	t.Helper()
	all, err := made()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Guarantees that each cell has its own stack, and that every change of a stack shows as a change of a golden file. The
// local gateway is tested with the same files.
func TestTemplate(t *testing.T) {
	all := read(t)
	if names := slices.Sorted(maps.Keys(all)); !slices.Equal(names, []string{"acme-sample-eu-1", "acme-sample-us-1"}) {
		t.Fatalf("the stacks are %q", names)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, all["acme-sample-eu-1"], "", " "); err != nil {
		t.Fatal(err)
	}
	b.WriteByte('\n')
	file := filepath.Join("testdata", "sample.template.json")
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want, err := os.ReadFile(file); err != nil || !bytes.Equal(b.Bytes(), want) {
		t.Errorf("%s differs from the template that is made now (%v): run make golden, and read the diff", file, err)
	}
}

// callerParameter maps the decision and the caller to the service's request.
const callerParameter = "integration.request.header.x-sluice-caller"

// Guarantees that the local gateway can serve each template: the function behind every method is the one that the cell
// deploys, with its name and region, and each method leads to the correct path of the service.
func TestServable(t *testing.T) {
	all := read(t)
	for _, tt := range []struct{ stack, function, region string }{
		{"acme-sample-eu-1", "acme-eu-1-authorizer", "eu-west-1"},
		{"acme-sample-us-1", "acme-us-1-authorizer", "us-east-1"},
	} {
		d, err := template.Parse(tt.stack, all[tt.stack], template.Options{Account: "123456789012",
			Targets: map[string]string{backend: "http://127.0.0.1:9000"}})
		if err != nil {
			t.Fatal(err)
		}
		authorizers, integrations := d.Functions()
		if d.Kind != apigateway.REST || d.Region != tt.region || !slices.Equal(authorizers, []string{tt.function}) ||
			integrations != nil {
			t.Errorf("%s is read as a %s API in %s with the functions %q and %q", tt.stack, d.Kind, d.Region,
				authorizers,
				integrations)
		}
		leads := make(map[string]string)
		for i := range d.Routes {
			r := &d.Routes[i]
			if r.Integration.Type == apigateway.Mock {
				if !strings.HasPrefix(r.Key, "OPTIONS ") || r.Authorizer != "" {
					t.Errorf("%s has the route %+v", tt.stack, r)
				}
				continue
			}
			leads[r.Key] = r.Integration.Method + " " + r.Integration.URL
			if r.Authorizer == "" || r.Integration.Type != apigateway.HTTPProxy ||
				r.Integration.RequestParameters[callerParameter] != "context.authorizer.caller" {
				t.Errorf("%s has the route %+v", tt.stack, r)
			}
		}
		want := map[string]string{
			"GET /product/{id}": "GET http://127.0.0.1:9000/product/{id}",
			"PUT /product/{id}": "PUT http://127.0.0.1:9000/product/{id}",
			"GET /orders":       "GET http://127.0.0.1:9000/orders",
			"POST /orders":      "POST http://127.0.0.1:9000/orders",
			"ANY /v1/{proxy+}":  " http://127.0.0.1:9000/v1/{proxy}",
		}
		if !maps.Equal(leads, want) {
			t.Errorf("%s: the methods lead to %q, want %q", tt.stack, leads, want)
		}
		if denied := d.Responses["ACCESS_DENIED"]; denied.StatusCode != "429" ||
			denied.Parameters["gatewayresponse.header.Access-Control-Allow-Origin"] != "'"+page+"'" {
			t.Errorf("%s: the gateway response of a denial is %+v", tt.stack, denied)
		}
	}
}

// Guarantees that problems of the deployment file are reported with their position.
func TestDeploymentFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "deployment.yaml")
	t.Setenv("SLUICE_DEPLOYMENT", file)
	if err := run(); err == nil || !strings.Contains(err.Error(), "the deployment file: ") {
		t.Errorf("without a deployment file: %v", err)
	}
	if err := os.WriteFile(file, []byte("control: { region: eu-west-1 }\ncells: [ { id: E } ]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(); err == nil || !strings.Contains(err.Error(), "deployment.yaml:2:") {
		t.Errorf("an invalid cell: %v", err)
	}
}
