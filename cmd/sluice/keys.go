package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// storeKey creates a key in the control tables and prints it. If pepper is not "", the key is created and hashed here,
// and only its hash is sent; otherwise the server creates it.
func storeKey(c *cobra.Command, r *remote, request *admin.CreateKeyRequest, expires, pepper string) error {
	if err := r.why(c); err != nil {
		if r.reason == "" {
			err = fmt.Errorf("%w, or make a key for a plans file with --offline", err)
		}
		return err
	}
	request.Reason = r.reason
	if expires != "" {
		at, err := time.Parse(time.RFC3339, expires)
		if err != nil {
			return &usageError{c.CommandPath(), err}
		}
		request.Expires = &at
	}
	own := ""
	if pepper != "" {
		id, secret, err := choosePepper(c, pepper)
		if err != nil {
			return err
		}
		own = identity.NewKey()
		request.Hash, request.Pepper = identity.HashKey(secret, own), id
	}
	return operate(c, r, "keys/create", request, func(w io.Writer, k *admin.CreateKeyResponse) error {
		fmt.Fprintf(c.ErrOrStderr(), "sluice: key %s is stored, version %d; the key itself is shown only now\n",
			shown(k.Item.Key), k.Item.Version)
		_, err := fmt.Fprintln(w, k.Key)
		return err
	}, func(k *admin.CreateKeyResponse) {
		if k.Key == "" {
			k.Key = own
		}
	})
}

func newKeyListCommand() *cobra.Command {
	var r remote
	var tenant string
	c := &cobra.Command{
		Use: "list", Short: "List the stored API keys",
		Long:    "Lists the ids of the stored API keys. The keys themselves are not stored and cannot be shown.",
		Example: "  sluice key list --tenant acme",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return listing(c, &r, control.Keys, "KEY TENANT SUBJECT STATE EXPIRES PEPPER VERSION CHANGED BY",
				func(i *call.Item) []string {
					var k struct {
						Tenant, Subject, Pepper string
						Revoked                 bool
						Expires                 time.Time
					}
					state := "valid"
					switch err := json.Unmarshal(i.Body, &k); {
					case err != nil:
						state = "unreadable"
					case k.Revoked:
						state = "revoked"
					case !k.Expires.IsZero() && !k.Expires.After(time.Now()):
						state = "expired"
					}
					if tenant != "" && k.Tenant != tenant {
						return nil
					}
					return []string{i.Key, k.Tenant, k.Subject, state, day(k.Expires), k.Pepper,
						strconv.FormatInt(i.Version, 10), day(i.ChangedAt), i.Actor}
				})
		},
	}
	r.flags(c)
	c.Flags().StringVar(&tenant, "tenant", "", "list only the keys of tenant `ID`")
	return c
}

func newKeyRevokeCommand() *cobra.Command {
	var r remote
	c := &cobra.Command{
		Use: "revoke KEY-ID", Short: "Refuse an API key from now on",
		Long: "Revokes a key by its id, which 'sluice key list' shows. A revoked key stays revoked; create another " +
			"key instead.",
		Example: "  sluice key revoke key-7hq2mzw4bd --reason 'it was in a log'",
		Args:    wantArgs(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if identity.CheckKey(args[0]) == nil && len(args[0]) > 40 {
				return &usageError{c.CommandPath(), errors.New("the argument is an API key, not the id of a key; it " +
					"is now in your shell's history, so revoke it: 'sluice key list' shows its id")}
			}
			if err := r.why(c); err != nil {
				return err
			}
			return operate(c, &r, "keys/revoke", admin.KeyRequest{ID: args[0], Reason: r.reason},
				printWritten("key "+shown(args[0])+" is revoked"))
		},
	}
	r.writes(c)
	return c
}
