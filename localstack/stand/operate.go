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

// Bucket is that of the audit trail.
func (s *Stand) Bucket() string { return "sluice-audit-" + s.account + "-" + s.deployed.control }

// ControlTable is the name of a control table: plans, tenants, keys, cells, operations.
func (s *Stand) ControlTable(name string) string { return "sluice-" + name }

// Sluice runs the operator's command against the deployment, signed with the operator's credentials, and returns what
// it printed. The error has what it printed on stderr.
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

// Admin is a client of the control plane's operators' API, whose calls are signed with the credentials given; with none
// they are not.
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

// Key makes an API key of a tenant.
func (s *Stand) Key(ctx context.Context, tenant string) (string, error) {
	out, err := s.Sluice(ctx, "key", "create", "--tenant", tenant, "--reason", "a client of the stand", "--json")
	if err != nil {
		return "", err
	}
	var made struct {
		Key string `json:"key"`
	}
	// the text may contain a key, so the error has only its length
	if err := json.Unmarshal([]byte(out), &made); err != nil || made.Key == "" {
		return "", fmt.Errorf("sluice key create printed %d bytes, and no key in JSON", len(out))
	}
	return made.Key, nil
}

// AddCell has a cell join. It stores no URL of the cell's operators' API: that is served by the local gateway here,
// and the admin function takes only URLs of API Gateway. Who operates on counters says --ops-endpoint, as Ops has it.
func (s *Stand) AddCell(ctx context.Context, c Cell) error {
	_, err := s.Sluice(ctx, "cell", "add", c.ID, "--reason", "the stand's cell")
	return err
}

// CellState is a cell as sluice cell list tells it.
type CellState struct {
	Cell, State string
	Share       int64 // the weight that counts now
}

// CellStates are those of all cells, by their ids.
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

// joins is how long cells take at most to get their shares, on a machine that does much else.
const joins = 2 * time.Minute

// Join has each cell of the deployment join, and waits until they have their shares.
func (s *Stand) Join(ctx context.Context) error {
	for _, c := range s.deployed.cells {
		if err := s.AddCell(ctx, c); err != nil {
			return err
		}
	}
	return s.Active(ctx, s.deployed.cells...)
}

// Active waits until cells have their shares.
func (s *Stand) Active(ctx context.Context, cells ...Cell) error {
	return Until(ctx, joins, time.Second, func(ctx context.Context) error {
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

// Command is the path of the operator's command, built from the repository.
func (s *Stand) Command() string { return s.file("sluice") }

// Queue is the URL of a queue, as LocalStack has it.
func (s *Stand) Queue(ctx context.Context, region, name string) (string, error) {
	out, err := sqs.NewFromConfig(s.AWS(region)).GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		return "", err
	}
	return *out.QueueUrl, nil
}

// Waiting is how many messages a queue has, those that are being worked on included.
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
