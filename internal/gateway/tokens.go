package gateway

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/request/identity/token"
)

// Tokens say which JWTs a gateway accepts. Errors name the flags that set them.
type Tokens struct {
	Issuers string   // file with the issuers of --issuers; "": none
	Claims  []string // of --claims: those that limits name
}

// Check checks the flags without opening anything.
func (t *Tokens) Check() error {
	if len(t.Claims) > 0 && t.Issuers == "" || slices.Contains(t.Claims, "") {
		return fmt.Errorf("--claims %q: want names of claims, separated by commas, together with --issuers",
			strings.Join(t.Claims, ","))
	}
	return nil
}

// Open reads the issuers. Their keys are fetched when the first token of each arrives. Close what it returns.
func (t *Tokens) Open(log *slog.Logger) (*token.Verifier, error) {
	f, err := os.Open(t.Issuers)
	if err != nil {
		return nil, fmt.Errorf("--issuers %s: %w", t.Issuers, configfile.Advise(err))
	}
	defer func() { _ = f.Close() }() // the file is only read
	issuers, err := token.ReadIssuers(f)
	if err != nil {
		return nil, fmt.Errorf("--issuers %s %w", t.Issuers, err)
	}
	tokens, err := token.New(token.Config{Issuers: issuers, Claims: t.Claims, Log: log})
	if err != nil {
		return nil, fmt.Errorf("--issuers %s: %w", t.Issuers, err)
	}
	return tokens, nil
}
