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

const pepperHelp = `A key is stored as HMAC-SHA256(pepper, key). The pepper is a secret of 16 bytes or more, kept in a file apart from
the plans. Without --pepper the built-in pepper "dev" is used: it is public, and only 'sluice dev' on your own machine
should accept keys under it.`

func newKeyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "key",
		Short: "Make, list and revoke API keys, and hash them for a plans file",
		Args:  usageArgs(cobra.NoArgs),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newKeyCreateCommand(), newKeyHashCommand(), newKeyListCommand(), newKeyRevokeCommand())
	return c
}

func newKeyCreateCommand() *cobra.Command {
	var tenant, subject, id, pepper, expires string
	var r remote
	c := &cobra.Command{
		Use:   "create --tenant TENANT [--subject SUBJECT]",
		Short: "Make a new API key and print it once, stored or with its entry for a plans file",
		Long: "Makes a new API key and prints it, once, with the entry that goes below keys: in a plans file. The " +
			"entry holds\n" + "only the key's hash, so the key cannot be found again.\n\n" +
			"With --reason or --endpoint the key is stored for every cell instead, and only the key is printed. " +
			"It is then made where it\n" + "is stored, with the pepper that is there, or with --pepper " +
			"here, so that only its hash is sent.\n\n" + pepperHelp,
		Example: "  sluice key create --tenant acme --subject ci\n" +
			"  sluice key create --tenant acme --subject ci --reason 'for their pipeline'\n" +
			"  (umask 077; head -c 32 /dev/urandom | base64 > prod.pepper)\n" +
			"  sluice key create --tenant acme --subject ci --pepper prod=prod.pepper --expires 2027-01-01T00:00:00Z",
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
				return usage(fmt.Errorf("--id %q is not 1 to 64 of A-Z a-z 0-9 . _ -", id))
			}
			if expires != "" {
				if _, err := time.Parse(time.RFC3339, expires); err != nil {
					return usage(fmt.Errorf("--expires %q: want a time as in 2027-01-01T00:00:00Z", expires))
				}
			}
			if c.Flags().Changed("reason") || c.Flags().Changed("endpoint") {
				return storeKey(c, &r, &admin.CreateKeyRequest{Tenant: tenant, Subject: subject, ID: id}, expires,
					pepper)
			}
			if r.json {
				return usage(errors.New("--json goes with --reason"))
			}
			pepperID, secret, err := choosePepper(c, pepper)
			if err != nil {
				return err
			}
			key := identity.NewKey()
			if id == "" {
				id = "key-" + identity.NewKey()[4:12] // a random name, unrelated to the key
			}
			_, err = c.OutOrStdout().Write(keyEntry(key, id, tenant, subject, pepperID, expires, secret))
			return err
		},
	}
	r.writes(c)
	f := c.Flags()
	f.StringVar(&tenant, "tenant", "", "id of the tenant that the key speaks for (required)")
	f.StringVar(&subject, "subject", "", "who acts inside the tenant: a user, a service")
	f.StringVar(&id, "id", "", "id of the key (default: a random one)")
	f.StringVar(&expires, "expires", "", "time from which the key is refused, as in 2027-01-01T00:00:00Z (default: "+
		"never)")
	f.StringVar(&pepper, "pepper", "", "pepper to hash with, as `ID=FILE` (default: the built-in, public pepper dev)")
	return c
}

// keyEntry is the key, and its entry for a plans file. Texts are written as JSON strings, which YAML reads as they are.
func keyEntry(key, id, tenant, subject, pepperID, expires string, pepper []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n\n# The key is shown once. Its entry for the plans file:\nkeys:\n  - id: %s\n    tenant: %s\n", key, quoted(id), quoted(tenant))
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
		return fmt.Errorf("%s is missing", flag)
	case len(name) > limit.MaxNameBytes:
		return fmt.Errorf("%s has %d bytes, want at most %d", flag, len(name), limit.MaxNameBytes)
	case !utf8.ValidString(name):
		return fmt.Errorf("%s %q is not UTF-8", flag, name)
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("%s %q holds a control character", flag, name) // a plans file would refuse it
	}
	return nil
}

// choosePepper is the one that the flag names, or the built-in one, which is said on stderr.
func choosePepper(c *cobra.Command, flag string) (id string, pepper []byte, err error) {
	if flag == "" {
		fmt.Fprintln(c.ErrOrStderr(), "sluice: the built-in pepper \"dev\" is public: use this key on your own "+
			"machine only (see --pepper)")
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
		Short: "Read an API key from stdin and print its hash",
		Long: "Reads an API key from stdin, so that it stays out of the shell's history, and prints the hash to " +
			"store.\n\n" + pepperHelp,
		Example: "  sluice key hash --pepper prod=prod.pepper < key.txt",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			_, secret, err := choosePepper(c, pepper)
			if err != nil {
				return err
			}
			b, err := io.ReadAll(io.LimitReader(c.InOrStdin(), 2*identity.MaxKeyBytes))
			if err != nil {
				return fmt.Errorf("read the key from stdin: %w", err)
			}
			key := string(bytes.TrimSpace(b))
			if key == "" {
				return errors.New("no key on stdin")
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
