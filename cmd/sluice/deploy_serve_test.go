package main

import (
	"encoding/json"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/sluicelimits/sluice/internal/server/envoyconfig"
)

// parsesAsServe checks that `sluice serve` accepts the arguments.
func parsesAsServe(t *testing.T, where string, arguments []string) {
	t.Helper()
	var o serveOptions
	c := newServeCommand()
	c.ResetFlags()
	o.flags(c)
	if err := c.Flags().Parse(arguments); err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	if err := o.check(); err != nil {
		t.Errorf("%s: %v", where, err)
	}
	if c.Flags().NArg() > 0 {
		t.Errorf("%s: %q are arguments, not flags", where, c.Flags().Args())
	}
	if total := o.run.Server.DrainFor + o.run.Server.Grace; total <= 0 || total.Seconds() > 55 {
		t.Errorf("%s: draining takes up to %s", where, total)
	}
}

// Guarantees that the flags in the container recipe, in the Kubernetes manifest and in the Fargate template exist in
// `sluice serve`, and that the configuration beside them can be loaded.
func TestServeDeployments(t *testing.T) {
	const dir = "../../examples/envoy/"
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	loads := func(where, text string) {
		t.Helper()
		if _, err := envoyconfig.Load([]envoyconfig.File{{Name: where, Data: []byte(text)}},
			envoyconfig.Options{}); err != nil {
			t.Error(err)
		}
	}
	loads("limits.yaml", read(dir+"limits.yaml"))

	var recipe []string
	for _, name := range []string{"ENTRYPOINT", "CMD"} {
		list := regexp.MustCompile(`(?m)^` + name + ` (\[.*\])$`).FindStringSubmatch(read(dir + "Dockerfile"))
		var part []string
		if list == nil || json.Unmarshal([]byte(list[1]), &part) != nil {
			t.Fatalf("the recipe has no %s", name)
		}
		recipe = append(recipe, part...)
	}
	if len(recipe) < 3 || recipe[0] != "/sluice" || recipe[1] != "serve" {
		t.Fatalf("the command of the recipe is %q", recipe)
	}
	parsesAsServe(t, "Dockerfile", recipe[2:])

	decoder, kinds := yaml.NewDecoder(strings.NewReader(read(dir+"kubernetes.yaml"))), map[string]int{}
	for {
		var object struct {
			Kind string
			Data map[string]string
			Spec struct {
				Template struct {
					Spec struct {
						Grace      int `yaml:"terminationGracePeriodSeconds"`
						Containers []struct{ Args []string }
					}
				}
			}
		}
		if err := decoder.Decode(&object); err == io.EOF { //nolint:errorlint // the decoder returns io.EOF itself
			break
		} else if err != nil {
			t.Fatal(err)
		}
		kinds[object.Kind]++
		for name, text := range object.Data {
			loads(name, text)
		}
		for _, c := range object.Spec.Template.Spec.Containers {
			parsesAsServe(t, "kubernetes.yaml", c.Args)
			if object.Spec.Template.Spec.Grace < 26 { // the sum of --drain and --grace
				t.Error("kubernetes.yaml: the container is killed while it drains")
			}
		}
	}
	if kinds["Deployment"] != 1 || kinds["ConfigMap"] != 1 || kinds["Service"] != 1 {
		t.Errorf("kubernetes.yaml has objects of kinds %v", kinds)
	}

	var template struct {
		Resources map[string]struct {
			Type       string
			Properties struct {
				ContainerDefinitions []struct{ Command []string }
			}
		}
	}
	if err := json.Unmarshal([]byte(read("../../infra/testdata/ratelimit.template.json")), &template); err != nil {
		t.Fatal(err)
	}
	tasks := 0
	for name, r := range template.Resources {
		for _, c := range r.Properties.ContainerDefinitions {
			tasks++
			parsesAsServe(t, name, c.Command)
		}
	}
	if tasks != 1 {
		t.Errorf("the template has %d containers", tasks)
	}
}
