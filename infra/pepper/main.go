// Command pepper adds a new pepper to a deployment's secret, from its text on stdin to its text on stdout, so that no
// value is in a file, an argument or a template:
//
//	aws secretsmanager get-secret-value --secret-id sluice-identity --query SecretString --output text |
//	  go run ./pepper p1 |
//	  aws secretsmanager put-secret-value --secret-id sluice-identity --secret-string file:///dev/stdin
//
// API keys are hashed with the pepper that the deployment file names (control.pepper). One that is there is never
// replaced: its keys would be unknown from then on.
//
// In the same way "go run ./pepper -remove p1" takes a pepper out, after which every key that is hashed with it is
// unknown, and "go run ./pepper -address-key" replaces the key for addresses, after which every address is counted
// anew. They are for a secret that leaked: docs/runbooks/leaked_pepper.md.
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
	randomBytes = 32       // of a pepper, and of the key for addresses
	maxBytes    = 64 << 10 // of a secret, in Secrets Manager
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

// content is what a secret holds.
type content struct {
	members map[string]json.RawMessage // all of them; those of peppers are out of date
	peppers map[string][]byte          // by id
}

// change changes what a secret holds. Its error has no value of the secret.
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

// edit returns the text of a secret after a change. The error has no value of the secret.
func edit(text []byte, by change) ([]byte, error) {
	if err := check(text); err != nil { // strictly, before anything is taken for what it is not
		return nil, fmt.Errorf("the secret on stdin: %w", err)
	}
	c := content{peppers: map[string][]byte{}}
	if err := json.Unmarshal(text, &c.members); err != nil {
		return nil, errors.New("the secret on stdin is no JSON object")
	}
	if there, ok := c.members["peppers"]; ok {
		if err := json.Unmarshal(there, &c.peppers); err != nil {
			return nil, errors.New("the secret's peppers are no base64")
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
			return errors.New("the pepper's id is to be 1 to 64 of A-Z a-z 0-9 . _ -")
		case c.peppers[id] != nil:
			return fmt.Errorf("the secret has a pepper %q: take another id, since every key that was hashed with it "+
				"would be unknown", id)
		case len(c.peppers) == identity.MaxPeppers:
			return fmt.Errorf("the secret has %d peppers, which is as many as there may be", len(c.peppers))
		}
		c.peppers[id] = pepper
		return nil
	}
}

// remove takes a pepper out, unless it is the only one.
func remove(id string) change {
	return func(c *content) error {
		switch {
		case !limit.ValidID(id):
			return errors.New("the pepper's id is to be 1 to 64 of A-Z a-z 0-9 . _ -")
		case c.peppers[id] == nil:
			return fmt.Errorf("the secret has no pepper %q", id)
		case len(c.peppers) == 1:
			return fmt.Errorf("the secret has no pepper but %q: add another one first, or no API key can be made", id)
		}
		delete(c.peppers, id)
		return nil
	}
}

// replaceAddressKey puts another key in the place of the one for addresses.
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

// check reads a text as the functions will.
func check(text []byte) error {
	cache, err := secrets.New(secrets.Config{Client: fixed(text), ID: "stdin", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer cache.Close()
	_, err = cache.Get(context.Background(), time.Now())
	return err
}

// fixed is a Secrets Manager with one secret.
type fixed []byte

func (f fixed) GetSecretValue(
	context.Context, *secretsmanager.GetSecretValueInput, ...func(*secretsmanager.Options),
) (*secretsmanager.GetSecretValueOutput, error) {
	return &secretsmanager.GetSecretValueOutput{SecretString: aws.String(string(f)), VersionId: aws.String("stdin"),
		VersionStages: []string{"AWSCURRENT"}}, nil
}
