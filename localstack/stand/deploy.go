package stand

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"
	"go.yaml.in/yaml/v3"
)

// The default names in a deployment, as infra/config has them, and the id of the pepper that the stand makes.
const (
	controlStack = "sluice-control"
	secretName   = "sluice-identity"
	pepper       = "p1"
	full         = "full"
)

// Cell is a cell of the deployment.
type Cell struct {
	ID, Region string
	Full       bool
}

// Function returns the full name of one of the cell's Lambda functions. The given name is for example "authorizer".
func (c Cell) Function(name string) string { return "sluice-" + c.ID + "-" + name }

// Table returns the full name of one of the cell's tables. The given name is "counters" or "config".
func (c Cell) Table(name string) string { return "sluice-" + c.ID + "-" + name }

// deployed describes what is deployed.
type deployed struct {
	control string // the region of the control plane
	cells   []Cell
	outputs map[string]map[string]string // by stack and name
}

// Cells returns the cells that are deployed, in the order of the deployment file.
func (s *Stand) Cells() []Cell { return slices.Clone(s.deployed.cells) }

// Region returns the region of the control plane.
func (s *Stand) Region() string { return s.deployed.control }

// Output returns an output of a stack, or "" if the stack has no output of that name.
func (s *Stand) Output(stack, name string) string { return s.deployed.outputs[stack][name] }

// Deploy deploys the control plane and the cells of localstack/deployment.yaml, and more small cells. It updates stacks
// that exist already. The templates, the outputs and what the CDK CLI printed are in the stand's folder.
func (s *Stand) Deploy(ctx context.Context, more ...Cell) error {
	if err := s.writeDeployment(ctx, more); err != nil {
		return err
	}
	if err := s.build(ctx); err != nil {
		return err
	}
	if err := s.cdk(ctx); err != nil {
		return err
	}
	return s.Attach(ctx, more...)
}

// Attach uses what an earlier Deploy from the same folder deployed. It deploys nothing, which saves time while one
// works on a test.
func (s *Stand) Attach(ctx context.Context, more ...Cell) error {
	if err := s.writeDeployment(ctx, more); err != nil {
		return err
	}
	if err := s.readOutputs(); err != nil {
		return fmt.Errorf("nothing was deployed from this folder: %w", err)
	}
	if err := s.secrets(ctx); err != nil {
		return fmt.Errorf("the secret: %w", err)
	}
	return s.serve()
}

// file returns the path of a file in the stand's folder.
func (s *Stand) file(name string) string { return filepath.Join(s.o.Dir, name) }

// writeDeployment writes a copy of the deployment file with what the file cannot contain: the VPC of each full cell,
// the Redis, the architecture of this machine, and more cells.
func (s *Stand) writeDeployment(ctx context.Context, more []Cell) error {
	from := filepath.Join(s.o.Root, "localstack", "deployment.yaml")
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var d map[string]any
	if err := yaml.Unmarshal(text, &d); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	control, _ := d["control"].(map[string]any)
	cells, _ := d["cells"].([]any)
	s.deployed = deployed{}
	if s.deployed.control, _ = control["region"].(string); s.deployed.control == "" || len(cells) == 0 {
		return fmt.Errorf("%s: no control plane's region, or no cells", from)
	}
	d["architecture"] = map[string]string{"amd64": "x86_64", "arm64": "arm64"}[runtime.GOARCH]
	for _, of := range cells {
		cell, _ := of.(map[string]any)
		c := Cell{Full: cell["profile"] == full}
		c.ID, _ = cell["id"].(string)
		c.Region, _ = cell["region"].(string)
		s.deployed.cells = append(s.deployed.cells, c)
		if !c.Full {
			continue
		}
		vpc, subnets, err := s.subnets(ctx, c.Region)
		if err != nil {
			return err
		}
		network, _ := cell["network"].(map[string]any)
		cache, _ := cell["cache"].(map[string]any)
		if network == nil || cache == nil {
			return fmt.Errorf("%s: cell %s is full, so it must have a network and a cache", from, c.ID)
		}
		network["vpc"], network["subnets"], cache["endpoint"] = vpc, subnets, s.o.Redis
	}
	for _, c := range more {
		first, _ := cells[0].(map[string]any) // a small one
		cell := maps.Clone(first)
		cell["id"], cell["region"] = c.ID, c.Region
		cells = append(cells, cell)
		s.deployed.cells = append(s.deployed.cells, Cell{ID: c.ID, Region: c.Region})
	}
	d["cells"] = cells
	if text, err = yaml.Marshal(d); err != nil {
		return err
	}
	return os.WriteFile(s.file("deployment.yaml"), text, 0o600)
}

// build builds the command sluice.
func (s *Stand) build(ctx context.Context) error {
	return s.run(ctx, "build", nil, "go", "build", "-o", s.file("sluice"), "./cmd/sluice")
}

// cdk synthesizes the templates and deploys them. It also synthesizes those of the sample APIs, which are not deployed.
// All Lambda functions are built only the first time, because the source does not change during a test run.
func (s *Stand) cdk(ctx context.Context) error {
	env := s.environment(s.deployed.control, "DEPLOYMENT="+s.file("deployment.yaml"), "CI=true")
	regions := map[string]bool{s.deployed.control: true}
	for _, c := range s.deployed.cells {
		regions[c.Region] = true
	}
	bootstrap := []string{"bootstrap", "--app", s.file("cdk.out")}
	for _, region := range slices.Sorted(maps.Keys(regions)) {
		bootstrap = append(bootstrap, "aws://"+s.account+"/"+region)
	}
	lambdas := "all"
	if s.built {
		lambdas = "missing"
	}
	samples := append(slices.Clone(env), "SLUICE_DEPLOYMENT="+s.file("deployment.yaml"))
	for _, step := range []struct {
		name string
		env  []string
		args []string
	}{
		{"synth", env, []string{"--lambdas", lambdas, "synth", "--quiet", "--output", s.file("cdk.out")}},
		{"bootstrap", env, bootstrap},
		{"deploy", env, []string{
			"deploy", "--all", "--concurrency", "1", "--require-approval", "never", "--app", s.file("cdk.out"),
			"--outputs-file", s.file("outputs.json"),
		}},
		{"samples", samples, []string{"synth", "--quiet", "--app", "go run ./sample", "--output",
			s.file("samples.out")}},
	} {
		if err := s.run(ctx, step.name, step.env, filepath.Join(s.o.Root, "scripts", "cdk"), step.args...); err != nil {
			return err
		}
	}
	s.built = true
	return nil
}

// run runs one of the repository's tools. Its output goes to a log file, and the end of it also into the error.
func (s *Stand) run(ctx context.Context, step string, env []string, name string, args ...string) error {
	s.logf("%s", step)
	log, err := os.Create(s.file(step + ".log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	var end tail
	c := exec.CommandContext(ctx, name, args...) //nolint:gosec // the repository's own tools
	c.Dir, c.Env = s.o.Root, env
	c.Stdout, c.Stderr = io.MultiWriter(log, &end), io.MultiWriter(log, &end)
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w; the end of %s:\n%s", step, err, log.Name(), end.text())
	}
	return nil
}

const tailBytes = 3000 // enough for the error message of the CDK CLI and some lines before it

// tail keeps the end of what is written to it.
type tail struct{ b bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	t.b.Write(p)
	if over := t.b.Len() - 2*tailBytes; over > 0 {
		t.b.Next(over)
	}
	return len(p), nil
}

func (t *tail) text() string {
	b := t.b.Bytes()
	return string(b[max(0, len(b)-tailBytes):])
}

func (s *Stand) readOutputs() error {
	text, err := os.ReadFile(s.file("outputs.json"))
	if err != nil {
		return err
	}
	s.deployed.outputs = map[string]map[string]string{}
	return json.Unmarshal(text, &s.deployed.outputs)
}

// secrets adds a pepper to the deployment's secret, as docs/deploy.md describes. It also copies the secret to the
// cells' regions, because LocalStack does not make the replicas that the template asks for.
func (s *Stand) secrets(ctx context.Context) error {
	client := secretsmanager.NewFromConfig(s.AWS(s.deployed.control))
	name := aws.String(secretName)
	held, err := client.GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{SecretId: name})
	if err != nil {
		return err
	}
	value := aws.ToString(held.SecretString)
	if !strings.Contains(value, `"peppers"`) {
		c := exec.CommandContext(ctx, "go", "run", "./pepper", pepper)
		c.Dir, c.Stdin = filepath.Join(s.o.Root, "infra"), strings.NewReader(value)
		var out, said bytes.Buffer
		c.Stdout, c.Stderr = &out, &said
		if err := c.Run(); err != nil {
			return fmt.Errorf("infra/pepper: %w: %s", err, said.String())
		}
		value = out.String()
		if _, err := client.PutSecretValue(ctx, &secretsmanager.PutSecretValueInput{SecretId: name,
			SecretString: &value}); err != nil {
			return err
		}
	}
	for _, c := range s.deployed.cells {
		if c.Region == s.deployed.control {
			continue
		}
		there := secretsmanager.NewFromConfig(s.AWS(c.Region))
		_, err := there.PutSecretValue(ctx, &secretsmanager.PutSecretValueInput{SecretId: name, SecretString: &value})
		if none := new(types.ResourceNotFoundException); errors.As(err, &none) {
			_, err = there.CreateSecret(ctx, &secretsmanager.CreateSecretInput{Name: name, SecretString: &value})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.Region, err)
		}
	}
	return nil
}
