package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/identity"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const pepperUsage = "pepper to hash with, as `ID=FILE` (default: the built-in, public pepper dev)"

func newKeyCommand() *cobra.Command {
	c := group("key", "Create, list, replace and revoke API keys, and hash them for a plans file")
	c.AddCommand(newKeyCreateCommand(), newKeyRotateCommand(), newKeyHashCommand(), newKeyListCommand(),
		newKeyRevokeCommand())
	return c
}

// keyFlags say which key is created.
type keyFlags struct {
	remote
	request operate.CreateKeyRequest
	expires time.Time
	peppers []pepperFlag // the last one counts
}

func newKeyCreateCommand() *cobra.Command {
	var k keyFlags
	var offline bool
	c := &cobra.Command{
		Use: "create", Short: "Create an API key, and store it, or print its entry for a plans file",
		Long: `Creates a new API key, stores its hash for all cells, and prints the key. It cannot be
shown a second time. The server creates the key and hashes it with its own pepper, a secret. With
--pepper, this command does that, and sends only the hash. With --offline, nothing is stored: the key
is printed together with an entry for the section "keys" of a plans file. See docs/plans.md.`,
		Example: "  sluice key create --tenant acme --subject ci --reason 'for their pipeline'\n" +
			"  sluice key create --offline --tenant acme --pepper prod=prod.pepper --expires 2027-01-01T00:00:00Z",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(checkName("--tenant", k.request.Tenant, true),
				checkName("--subject", k.request.Subject, false)); err != nil {
				return usage(err)
			}
			if id := k.request.ID; id != "" && !limit.ValidID(id) {
				return usagef("--id %q: want 1 to 64 characters A-Z a-z 0-9 . _ -", id)
			}
			if !offline {
				return k.store(c)
			}
			for _, flag := range []string{"reason", "json", "endpoint", "region", "sign"} {
				if c.Flags().Changed(flag) {
					return usagef("--offline cannot be combined with --%s: it stores the key nowhere", flag)
				}
			}
			return k.print(c)
		},
	}
	k.writes(c)
	f := c.Flags()
	f.BoolVar(&offline, "offline", false, "store nothing; print the key and its entry for a plans file")
	f.StringVar(&k.request.Tenant, "tenant", "", "id of the `TENANT` that calls with the key belong to (required)")
	f.StringVar(&k.request.Subject, "subject", "", "user or machine that acts inside the tenant")
	f.StringVar(&k.request.ID, "id", "", "id of the key (default: a random one)")
	k.ofKey(f)
	return c
}

// ofKey adds the flags for what a key has of its own.
func (k *keyFlags) ofKey(f *pflag.FlagSet) {
	timeFlag(f, &k.expires, "expires", "`TIME` from which on the key is refused, such as 2027-01-01T00:00:00Z "+
		"(default: never)")
	pepperFlags(f, &k.peppers, pepperUsage)
}

// print makes a key and prints it, with its entry for a plans file.
func (k *keyFlags) print(c *cobra.Command) error {
	pepperID, secret, err := choosePepper(c, k.peppers)
	if err != nil {
		return err
	}
	key := identity.NewKey()
	if k.request.ID == "" {
		k.request.ID = "key-" + identity.NewKey()[4:12] // random characters of another key, which is not used
	}
	_, err = c.OutOrStdout().Write(k.entry(key, pepperID, secret))
	return err
}

// entry returns the key and its entry for a plans file. It writes texts as JSON strings, which are valid YAML.
func (k *keyFlags) entry(key, pepperID string, pepper []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n\n# The key is shown once. Its entry for the plans file:\nkeys:\n", key)
	fmt.Fprintf(&b, "  - id: %s\n    tenant: %s\n", quoted(k.request.ID), quoted(k.request.Tenant))
	if k.request.Subject != "" {
		fmt.Fprintf(&b, "    subject: %s\n", quoted(k.request.Subject))
	}
	fmt.Fprintf(&b, "    hash: %s\n    pepper: %s\n", quoted(identity.HashKey(pepper, key)), quoted(pepperID))
	if !k.expires.IsZero() {
		fmt.Fprintf(&b, "    expires: %s\n", k.expires.Format(time.RFC3339Nano))
	}
	return b.Bytes()
}

func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil { // not reached: strings always marshal
		panic(err)
	}
	return string(b)
}

func checkName(flag, name string, required bool) error {
	switch {
	case name == "" && required:
		return fmt.Errorf("%s is missing: give one such as %s acme", flag, flag)
	case len(name) > limit.MaxNameBytes:
		return fmt.Errorf("%s has %d bytes; want at most %d", flag, len(name), limit.MaxNameBytes)
	case !utf8.ValidString(name):
		return fmt.Errorf("%s %q is not UTF-8", flag, name)
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("%s %q contains a control character", flag, name) // plans files must not contain any
	}
	return nil
}

// choosePepper returns the pepper of the flag --pepper. Without the flag it returns the built-in pepper, and prints a
// warning.
func choosePepper(c *cobra.Command, given []pepperFlag) (id string, pepper []byte, err error) {
	if len(given) == 0 {
		fmt.Fprintln(c.ErrOrStderr(), "sluice: the built-in pepper \"dev\" is public: use this key on your own "+
			"machine only; --pepper names another pepper")
		return identity.DevPepperID, identity.DevPepper(), nil
	}
	p := given[len(given)-1]
	pepper, err = p.read()
	return p.id, pepper, err
}

func newKeyHashCommand() *cobra.Command {
	var peppers []pepperFlag
	c := &cobra.Command{
		Use:   "hash",
		Short: "Read an API key from standard input and print its hash",
		Long: `Reads an API key from standard input, so that the key does not get into the shell's
history, and prints the hash to put into a plans file. See docs/plans.md.`,
		Example: "  sluice key hash --pepper prod=prod.pepper < key.txt",
		RunE: func(c *cobra.Command, _ []string) error {
			_, secret, err := choosePepper(c, peppers)
			if err != nil {
				return err
			}
			b, err := io.ReadAll(io.LimitReader(c.InOrStdin(), 2*identity.MaxKeyBytes))
			if err != nil {
				return fmt.Errorf("read the key from standard input: %w", err)
			}
			key := string(bytes.TrimSpace(b))
			if key == "" {
				return errors.New("standard input is empty: want an API key there")
			}
			if err := identity.CheckKey(key); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), identity.HashKey(secret, key))
			return err
		},
	}
	pepperFlags(c.Flags(), &peppers, pepperUsage)
	return c
}
