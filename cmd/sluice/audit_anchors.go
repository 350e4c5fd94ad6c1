package main

import (
	"crypto/ecdsa"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/audit/kmskey"
)

// anchorFlags say what is known of the anchors of an audit trail.
type anchorFlags struct{ keys, known, explained []string }

func (a *anchorFlags) flags(f *pflag.FlagSet) {
	f.StringArrayVar(&a.keys, "anchor-key", nil,
		"public `KEY` of the anchors: a file, or in KMS the ARN or alias/NAME; again for each key there has been")
	f.StringArrayVar(&a.known, "known-anchor", nil, "an anchor that was seen before, `DAY=HASH`; as often as one likes")
	f.StringArrayVar(&a.explained, "explained", nil,
		"a `DAY` without an anchor, of which the reason is known; as often as one likes")
}

// read puts what the flags say into a configuration.
func (a *anchorFlags) read(c *cobra.Command, s *auditSource, to *audit.VerifyConfig) error {
	wrong := func(format string, args ...any) error {
		return &usageError{c.CommandPath(), fmt.Errorf(format, args...)}
	}
	for _, known := range a.known {
		day, sum, _ := strings.Cut(known, "=")
		if raw, err := hex.DecodeString(sum); err != nil || len(raw) != 32 || !isDay(day) {
			return wrong("--known-anchor %q: want DAY=HASH, as 'sluice audit verify' prints it", known)
		}
		if to.Known == nil {
			to.Known = map[string]string{}
		}
		to.Known[day] = strings.ToLower(sum)
	}
	for _, day := range a.explained {
		if !isDay(day) {
			return wrong("--explained %q: want a day, as 2026-11-22", day)
		}
	}
	to.Explained = a.explained
	for _, name := range a.keys {
		key, err := readAnchorKey(c, s, name)
		if err != nil {
			return err
		}
		to.Keys = append(to.Keys, key)
	}
	return nil
}

func isDay(text string) bool {
	_, err := time.Parse(time.DateOnly, text)
	return err == nil
}

// readAnchorKey reads a public key from KMS or from a file.
func readAnchorKey(c *cobra.Command, s *auditSource, name string) (*ecdsa.PublicKey, error) {
	if strings.HasPrefix(name, "arn:") || strings.HasPrefix(name, "alias/") {
		config, err := s.aws(c.Context())
		if err != nil {
			return nil, err
		}
		return kmskey.Public(c.Context(), kms.NewFromConfig(config), name)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("--anchor-key names a file, an ARN or alias/NAME: %w", err)
	}
	key, err := kmskey.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("the public key in %s: %w", name, err)
	}
	return key, nil
}

// knownAnchor is what --known-anchor is given later; empty where no anchor holds.
func knownAnchor(r *audit.Report) string {
	if r.LastAnchor == "" {
		return ""
	}
	return r.LastAnchor + "=" + r.LastAnchorHash
}
