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

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

const pepperHelp = `A key is stored as HMAC-SHA256(pepper, key). The pepper is a secret of 16 bytes
or more, in a file that is kept apart from the plans. Without --pepper, the built-in pepper "dev" is
used. That pepper is public, so only 'sluice dev' on your own machine should accept keys under it.`

func newKeyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "key",
		Short: "Create, list and revoke API keys, and hash them for a plans file",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newKeyCreateCommand(), newKeyHashCommand(), newKeyListCommand(), newKeyRevokeCommand())
	return c
}

func newKeyCreateCommand() *cobra.Command {
	var tenant, subject, id, pepper, expires string
	var offline bool
	var r remote
	c := &cobra.Command{
		Use:   "create --tenant TENANT [--subject SUBJECT]",
		Short: "Create an API key, and store it, or print its entry for a plans file",
		Long: `Creates a new API key, stores it for all cells, and prints it. It cannot be shown a
second time. The server creates the key and hashes it with its own pepper. With --pepper, this
command does that, and sends only the hash.

With --offline, nothing is stored. The key is printed together with an entry for the section "keys"
of a plans file. The entry contains only the hash of the key.

` + pepperHelp,
		Example: "  sluice key create --tenant acme --subject ci --reason 'for their pipeline'\n" +
			"  sluice key create --offline --tenant acme --subject ci\n" +
			"  (umask 077; head -c 32 /dev/urandom | base64 > prod.pepper)\n" +
			"  sluice key create --offline --tenant acme --pepper prod=prod.pepper --expires 2027-01-01T00:00:00Z",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			usage := func(err error) error { return &usageError{c.CommandPath(), err} }
			if err := checkName("--tenant", tenant, true); err != nil {
				return usage(err)
			}
			if err := checkName("--subject", subject, false); err != nil {
				return usage(err)
			}
			if id != "" && !limit.ValidID(id) {
				return usage(fmt.Errorf("--id %q: want 1 to 64 characters A-Z a-z 0-9 . _ -", id))
			}
			if expires != "" {
				if _, err := time.Parse(time.RFC3339, expires); err != nil {
					return usage(fmt.Errorf("--expires %q: want a time such as 2027-01-01T00:00:00Z", expires))
				}
			}
			if !offline {
				return storeKey(c, &r, &admin.CreateKeyRequest{Tenant: tenant, Subject: subject, ID: id}, expires,
					pepper)
			}
			for _, flag := range []string{"reason", "json", "endpoint", "token-file", "region", "sign"} {
				if c.Flags().Changed(flag) {
					return usage(fmt.Errorf("--offline cannot be combined with --%s: it stores the key nowhere", flag))
				}
			}
			pepperID, secret, err := choosePepper(c, pepper)
			if err != nil {
				return err
			}
			key := identity.NewKey()
			if id == "" {
				id = "key-" + identity.NewKey()[4:12] // random characters of another key, which is not used
			}
			_, err = c.OutOrStdout().Write(keyEntry(key, id, tenant, subject, pepperID, expires, secret))
			return err
		},
	}
	r.writes(c)
	f := c.Flags()
	f.BoolVar(&offline, "offline", false, "store nothing; print the key and its entry for a plans file")
	f.StringVar(&tenant, "tenant", "", "id of the tenant that calls with the key belong to (required)")
	f.StringVar(&subject, "subject", "", "user or machine that acts inside the tenant")
	f.StringVar(&id, "id", "", "id of the key (default: a random one)")
	f.StringVar(&expires, "expires", "", "time from which on the key is refused, such as 2027-01-01T00:00:00Z "+
		"(default: never)")
	f.StringVar(&pepper, "pepper", "", "pepper to hash with, as `ID=FILE` (default: the built-in, public pepper dev)")
	return c
}

// keyEntry returns the key and its entry for a plans file. It writes texts as JSON strings, which are valid YAML.
func keyEntry(key, id, tenant, subject, pepperID, expires string, pepper []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n\n# The key is shown once. Its entry for the plans file:\nkeys:\n", key)
	fmt.Fprintf(&b, "  - id: %s\n    tenant: %s\n", quoted(id), quoted(tenant))
	if subject != "" {
		fmt.Fprintf(&b, "    subject: %s\n", quoted(subject))
	}
	fmt.Fprintf(&b, "    hash: %s\n    pepper: %s\n", quoted(identity.HashKey(pepper, key)), quoted(pepperID))
	if expires != "" {
		fmt.Fprintf(&b, "    expires: %s\n", expires)
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
func choosePepper(c *cobra.Command, flag string) (id string, pepper []byte, err error) {
	if flag == "" {
		fmt.Fprintln(c.ErrOrStderr(), "sluice: the built-in pepper \"dev\" is public: use this key on your own "+
			"machine only; --pepper names another pepper")
		return identity.DevPepperID, identity.DevPepper(), nil
	}
	p, err := parsePepper(flag)
	if err != nil {
		return "", nil, &usageError{c.CommandPath(), err}
	}
	pepper, err = p.read()
	return p.id, pepper, err
}

func newKeyHashCommand() *cobra.Command {
	var pepper string
	c := &cobra.Command{
		Use:   "hash",
		Short: "Read an API key from standard input and print its hash",
		Long: `Reads an API key from standard input, so that the key does not get into the shell's
history, and prints the hash to put into a plans file.

` + pepperHelp,
		Example: "  sluice key hash --pepper prod=prod.pepper < key.txt",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			_, secret, err := choosePepper(c, pepper)
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
	c.Flags().StringVar(&pepper, "pepper", "", "pepper to hash with, as `ID=FILE` (default: the built-in, public "+
		"pepper dev)")
	return c
}
