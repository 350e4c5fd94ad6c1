// Command pepper adds a new pepper to a deployment's secret, from its text on stdin to its text on stdout, so that no value is in a
// file, an argument or a template:
//
//	aws secretsmanager get-secret-value --secret-id sluice-identity --query SecretString --output text |
//	  go run ./pepper p1 |
//	  aws secretsmanager put-secret-value --secret-id sluice-identity --secret-string file:///dev/stdin
//
// API keys are hashed with the pepper that the deployment file names (control.pepper). One that is there is never replaced: its keys
// would be unknown from then on.
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
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	"github.com/sluicelimits/sluice/internal/identity"
	"github.com/sluicelimits/sluice/internal/limit"
	"github.com/sluicelimits/sluice/internal/secrets"
)

const (
	pepperBytes = 32
	maxBytes    = 64 << 10 // of a secret, in Secrets Manager
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: pepper ID < the secret's text > its new text")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "pepper:", err)
		os.Exit(1)
	}
}

func run(id string, from io.Reader, to io.Writer) error {
	text, err := io.ReadAll(io.LimitReader(from, maxBytes+1))
	if err != nil {
		return err
	}
	pepper := make([]byte, pepperBytes)
	if _, err := rand.Read(pepper); err != nil {
		return err
	}
	changed, err := add(text, id, pepper)
	if err != nil {
		return err
	}
	_, err = to.Write(append(changed, '\n'))
	return err
}

// add is the text of a secret with a pepper more. The error has no value of the secret.
func add(text []byte, id string, pepper []byte) ([]byte, error) {
	if !limit.ValidID(id) {
		return nil, errors.New("the pepper's id is to be 1 to 64 of A-Z a-z 0-9 . _ -")
	}
	if err := check(text); err != nil { // strictly, before anything is taken for what it is not
		return nil, fmt.Errorf("the secret on stdin: %w", err)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return nil, errors.New("the secret on stdin is no JSON object")
	}
	peppers := map[string][]byte{}
	if there, ok := members["peppers"]; ok {
		if err := json.Unmarshal(there, &peppers); err != nil {
			return nil, errors.New("the secret's peppers are no base64")
		}
	}
	switch {
	case peppers[id] != nil:
		return nil, fmt.Errorf("the secret has a pepper %q: take another id, since every key that was hashed with it would be unknown", id)
	case len(peppers) == identity.MaxPeppers:
		return nil, fmt.Errorf("the secret has %d peppers, which is as many as there may be", len(peppers))
	}
	peppers[id] = pepper
	all, err := json.Marshal(peppers)
	if err != nil {
		return nil, err
	}
	members["peppers"] = all
	changed, err := json.Marshal(members)
	if err != nil {
		return nil, err
	}
	return changed, check(changed)
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

func (f fixed) GetSecretValue(context.Context, *secretsmanager.GetSecretValueInput, ...func(*secretsmanager.Options)) (*secretsmanager.GetSecretValueOutput, error) {
	return &secretsmanager.GetSecretValueOutput{SecretString: aws.String(string(f)), VersionId: aws.String("stdin"), VersionStages: []string{"AWSCURRENT"}}, nil
}
