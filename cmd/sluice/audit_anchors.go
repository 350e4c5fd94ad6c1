package main

import (
	"context"
	"crypto/ecdsa"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/audit/kmskey"
)

// anchorFlags hold what the user knows about the anchors of an audit trail.
type anchorFlags struct{ keys, known, explained []string }

func (a *anchorFlags) flags(f *pflag.FlagSet) {
	f.StringArrayVar(&a.keys, "anchor-key", nil,
		"public `KEY` that verifies anchors: a file, or the ARN or alias/NAME of a key in KMS; repeat the flag for "+
			"each key that was ever used")
	f.StringArrayVar(&a.known, "known-anchor", nil,
		"an anchor that an earlier run printed, `DAY=HASH`; may be repeated")
	f.StringArrayVar(&a.explained, "explained", nil,
		"accept that the `DAY` has no anchor, because you know why; may be repeated")
}

// read sets the fields of a configuration that the flags are about.
func (a *anchorFlags) read(ctx context.Context, to *audit.VerifyConfig) error {
	for _, known := range a.known {
		day, sum, _ := strings.Cut(known, "=")
		if raw, err := hex.DecodeString(sum); err != nil || len(raw) != 32 || !isDay(day) {
			return usagef("--known-anchor %q: want DAY=HASH, as 'sluice audit verify' prints it", known)
		}
		if to.Known == nil {
			to.Known = map[string]string{}
		}
		to.Known[day] = strings.ToLower(sum)
	}
	for _, day := range a.explained {
		if !isDay(day) {
			return usagef("--explained %q: want a day, such as 2026-11-22", day)
		}
	}
	to.Explained = a.explained
	for _, name := range a.keys {
		key, err := readAnchorKey(ctx, name)
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
func readAnchorKey(ctx context.Context, name string) (*ecdsa.PublicKey, error) {
	if strings.HasPrefix(name, "arn:") || strings.HasPrefix(name, "alias/") {
		config, err := awsConfig(ctx)
		if err != nil {
			return nil, err
		}
		return kmskey.Public(ctx, kms.NewFromConfig(config), name)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("--anchor-key names a file, an ARN or alias/NAME: %w", err)
	}
	key, err := kmskey.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("--anchor-key: public key in %s: %w", name, err)
	}
	return key, nil
}

// knownAnchor returns the newest valid anchor in the form of --known-anchor; "" if there is no valid anchor.
func knownAnchor(r *audit.Report) string {
	if r.LastAnchor == "" {
		return ""
	}
	return r.LastAnchor + "=" + r.LastAnchorHash
}
