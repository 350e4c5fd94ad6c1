// Command pepper adds a new pepper to a deployment's secret. It reads the secret's text from stdin and writes the new
// text to stdout, so that no secret value is in a file, an argument or a template:
//
//	aws secretsmanager get-secret-value --secret-id sluice-identity --query SecretString --output text |
//	  go run ./pepper p1 |
//	  aws secretsmanager put-secret-value --secret-id sluice-identity --secret-string file:///dev/stdin
//
// New API keys are hashed with the pepper that the deployment file names (control.pepper). The command never replaces a
// pepper that the secret has, because the keys that were hashed with it would become unknown.
//
// In the same way "go run ./pepper -remove p1" removes a pepper; every key that was hashed with it then becomes
// unknown. "go run ./pepper -address-key" replaces the key for addresses; every address then begins with new counters.
// Use these two after the secret has leaked: see docs/runbooks/leaked_pepper.md.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	"github.com/sluicelimits/sluice/internal/cell/secrets"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

const (
	randomBytes = 32       // length of a pepper, and of the key for addresses
	maxBytes    = 64 << 10 // the size limit of Secrets Manager for a secret
)

const usage = "usage: pepper ID | pepper -remove ID | pepper -address-key   < the secret's text > its new text"

func main() {
	change, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	if err := run(change, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "pepper:", err)
		os.Exit(1)
	}
}

// content is the content of the secret.
type content struct {
	// all members; the member peppers is replaced by the next field when the secret is written
	members map[string]json.RawMessage
	peppers map[string][]byte // by id
}

// change changes the content of the secret. Its error contains no value of the secret.
type change func(*content) error

// parse returns the change that a command line asks for.
func parse(args []string) (change, error) {
	switch {
	case len(args) == 1 && args[0] == "-address-key":
		return replaceAddressKey(random()), nil
	case len(args) == 2 && args[0] == "-remove":
		return remove(args[1]), nil
	case len(args) == 1 && !strings.HasPrefix(args[0], "-"):
		return add(args[0], random()), nil
	}
	return nil, errors.New(usage)
}

func random() []byte {
	b := make([]byte, randomBytes)
	_, _ = rand.Read(b) // never fails
	return b
}

func run(by change, from io.Reader, to io.Writer) error {
	text, err := io.ReadAll(io.LimitReader(from, maxBytes+1))
	if err != nil {
		return err
	}
	changed, err := edit(text, by)
	if err != nil {
		return err
	}
	_, err = to.Write(append(changed, '\n'))
	return err
}

// edit returns the text of a secret after a change. The error contains no value of the secret.
func edit(text []byte, by change) ([]byte, error) {
	if err := check(text); err != nil { // as strictly as the functions read it
		return nil, fmt.Errorf("the secret on stdin: %w", err)
	}
	c := content{peppers: map[string][]byte{}}
	if err := json.Unmarshal(text, &c.members); err != nil {
		return nil, errors.New("the secret on stdin is not a JSON object")
	}
	if there, ok := c.members["peppers"]; ok {
		if err := json.Unmarshal(there, &c.peppers); err != nil {
			return nil, errors.New("the secret's peppers are not base64")
		}
	}
	if err := by(&c); err != nil {
		return nil, err
	}
	if len(c.peppers) > 0 {
		all, err := json.Marshal(c.peppers)
		if err != nil {
			return nil, err
		}
		c.members["peppers"] = all
	}
	changed, err := json.Marshal(c.members)
	if err != nil {
		return nil, err
	}
	return changed, check(changed)
}

// add adds a pepper.
func add(id string, pepper []byte) change {
	return func(c *content) error {
		switch {
		case !limit.ValidID(id):
			return errors.New("the pepper's id must have 1 to 64 of the characters A-Z a-z 0-9 . _ -")
		case c.peppers[id] != nil:
			return fmt.Errorf("the secret already has a pepper %q, and replacing it would make every key that was "+
				"hashed with it "+"unknown: use another id", id)
		case len(c.peppers) == identity.MaxPeppers:
			return fmt.Errorf("the secret has %d peppers, the most that are allowed: remove one first", len(c.peppers))
		}
		c.peppers[id] = pepper
		return nil
	}
}

// remove removes a pepper, unless it is the only one.
func remove(id string) change {
	return func(c *content) error {
		switch {
		case !limit.ValidID(id):
			return errors.New("the pepper's id must have 1 to 64 of the characters A-Z a-z 0-9 . _ -")
		case c.peppers[id] == nil:
			return fmt.Errorf("the secret has no pepper %q", id)
		case len(c.peppers) == 1:
			return fmt.Errorf("%q is the only pepper of the secret, and without a pepper no API key can be made: "+
				"add another one first", id)
		}
		delete(c.peppers, id)
		return nil
	}
}

// replaceAddressKey replaces the key for addresses.
func replaceAddressKey(key []byte) change {
	return func(c *content) error {
		text, err := json.Marshal(key)
		if err != nil {
			return err
		}
		c.members["addressKey"] = text
		return nil
	}
}

// check reads a text as the functions do.
func check(text []byte) error {
	cache, err := secrets.New(secrets.Config{Client: fixed(text), ID: "stdin", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer cache.Close()
	_, err = cache.Get(context.Background(), time.Now())
	return err
}

// fixed is a Secrets Manager client that returns one fixed secret.
type fixed []byte

func (f fixed) GetSecretValue(
	context.Context, *secretsmanager.GetSecretValueInput, ...func(*secretsmanager.Options),
) (*secretsmanager.GetSecretValueOutput, error) {
	return &secretsmanager.GetSecretValueOutput{SecretString: aws.String(string(f)), VersionId: aws.String("stdin"),
		VersionStages: []string{"AWSCURRENT"}}, nil
}
