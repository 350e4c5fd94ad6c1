package stand

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/sluicelimits/sluice/internal/control/client"
)

// Bucket returns the name of the bucket that has the audit trail.
func (s *Stand) Bucket() string { return "sluice-audit-" + s.account + "-" + s.deployed.control }

// ControlTable returns the full name of a control table. The given name is plans, tenants, keys, cells or operations.
func (s *Stand) ControlTable(name string) string { return "sluice-" + name }

// Sluice runs the command sluice on the deployment, whose requests are signed with the operator's credentials, and
// returns what it printed. The error contains what it printed to standard error.
func (s *Stand) Sluice(ctx context.Context, args ...string) (string, error) {
	c := exec.CommandContext(ctx, s.file("sluice"), args...) //nolint:gosec // built from the repository
	c.Dir = s.o.Dir
	c.Env = s.environment(s.deployed.control, "SLUICE_ENDPOINT="+s.gateways.control, "SLUICE_SIGN=true",
		"AWS_ACCESS_KEY_ID="+s.Operator.Credentials.AccessKeyID,
		"AWS_SECRET_ACCESS_KEY="+s.Operator.Credentials.SecretAccessKey)
	var out, said bytes.Buffer
	c.Stdout, c.Stderr = &out, &said
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("sluice %s: %w: %s", strings.Join(args, " "), err,
			strings.TrimSpace(said.String()))
	}
	return out.String(), nil
}

// Admin returns a client of the control plane's operators' API. It signs its requests with the given credentials. If
// these are empty, it does not sign them.
func (s *Stand) Admin(as aws.Credentials) (*client.Client, error) {
	var sign client.Sign
	if as.HasKeys() {
		sign = func(ctx context.Context, r *http.Request, bodyHash string) error {
			return v4.NewSigner().SignHTTP(ctx, as, r, bodyHash, "execute-api", s.deployed.control, time.Now())
		}
	}
	return client.New(s.gateways.control, sign)
}

// Apply applies a plans file.
func (s *Stand) Apply(ctx context.Context, plans string) error {
	f, err := os.CreateTemp(s.o.Dir, "plans-*.yaml")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	if _, err := f.WriteString(plans); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	_, err = s.Sluice(ctx, "plan", "apply", f.Name(), "--yes", "--reason", "the stand's plans")
	return err
}

// Key creates an API key of a tenant and returns it.
func (s *Stand) Key(ctx context.Context, tenant string) (string, error) {
	out, err := s.Sluice(ctx, "key", "create", "--tenant", tenant, "--reason", "a client of the stand", "--json")
	if err != nil {
		return "", err
	}
	var made struct {
		Key string `json:"key"`
	}
	// The text may contain a key, so the error has only its length.
	if err := json.Unmarshal([]byte(out), &made); err != nil || made.Key == "" {
		return "", fmt.Errorf("sluice key create printed %d bytes that are not JSON with a key", len(out))
	}
	return made.Key, nil
}

// AddCell adds a cell. It does not store the URL of the cell's operators' API, because the local gateway serves that
// API, and the admin function accepts only URLs of API Gateway. Commands for counters need --ops-endpoint with the URL
// that Ops returns.
func (s *Stand) AddCell(ctx context.Context, c Cell) error {
	_, err := s.Sluice(ctx, "cell", "add", c.ID, "--reason", "the stand's cell")
	return err
}

// CellState is a cell in the output of sluice cell list.
type CellState struct {
	Cell, State string
	Share       int64 // the cell's current weight
}

// CellStates returns the states of all cells, by the cells' ids.
func (s *Stand) CellStates(ctx context.Context) (map[string]CellState, error) {
	out, err := s.Sluice(ctx, "cell", "list", "--json")
	if err != nil {
		return nil, err
	}
	var listed struct {
		Cells []CellState `json:"cells"`
	}
	if err := json.Unmarshal([]byte(out), &listed); err != nil {
		return nil, fmt.Errorf("sluice cell list printed %.200s: %w", out, err)
	}
	all := map[string]CellState{}
	for _, c := range listed.Cells {
		all[c.Cell] = c
	}
	return all, nil
}

// joinTimeout is how long cells take at most to get their shares on a busy machine.
const joinTimeout = 2 * time.Minute

// Join adds each cell of the deployment, and waits until all of them have their shares.
func (s *Stand) Join(ctx context.Context) error {
	for _, c := range s.deployed.cells {
		if err := s.AddCell(ctx, c); err != nil {
			return err
		}
	}
	return s.Active(ctx, s.deployed.cells...)
}

// Active waits until the cells are active and have their shares.
func (s *Stand) Active(ctx context.Context, cells ...Cell) error {
	return Until(ctx, joinTimeout, time.Second, func(ctx context.Context) error {
		states, err := s.CellStates(ctx)
		if err != nil {
			return err
		}
		for _, c := range cells {
			if state := states[c.ID]; state.State != "active" || state.Share == 0 {
				return fmt.Errorf("cell %s is %q with share %d", c.ID, state.State, state.Share)
			}
		}
		return nil
	})
}

// Command returns the path of the command sluice that Deploy built.
func (s *Stand) Command() string { return s.file("sluice") }

// Queue returns the URL of a queue of LocalStack.
func (s *Stand) Queue(ctx context.Context, region, name string) (string, error) {
	out, err := sqs.NewFromConfig(s.AWS(region)).GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		return "", err
	}
	return *out.QueueUrl, nil
}

// Waiting returns how many messages a queue has, including those that a consumer has received and not deleted.
func (s *Stand) Waiting(ctx context.Context, region, queue string) (int, error) {
	url, err := s.Queue(ctx, region, queue)
	if err != nil {
		return 0, err
	}
	out, err := sqs.NewFromConfig(s.AWS(region)).GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &url,
		AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages,
			types.QueueAttributeNameApproximateNumberOfMessagesNotVisible},
	})
	if err != nil {
		return 0, err
	}
	n := 0
	for _, v := range out.Attributes {
		var one int
		if _, err := fmt.Sscan(v, &one); err != nil {
			return 0, fmt.Errorf("queue %s has %q messages", queue, v)
		}
		n += one
	}
	return n, nil
}
