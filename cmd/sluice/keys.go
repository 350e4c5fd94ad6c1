package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// create creates a key in the control tables. If there is a pepper, the key is created and hashed here, and only its
// hash is sent; otherwise the server creates it.
func (k *keyFlags) create(c *cobra.Command, to *client.Client) (*operate.CreateKeyResponse, error) {
	k.request.Reason, k.request.Expires = k.reason, given(&k.expires)
	own := ""
	if len(k.peppers) > 0 {
		id, secret, err := choosePepper(c, k.peppers)
		if err != nil {
			return nil, err
		}
		own = identity.NewKey()
		k.request.Hash, k.request.Pepper = identity.HashKey(secret, own), id
	}
	made, err := client.Do(c.Context(), to, operate.CreateKey, &k.request)
	if err != nil {
		return nil, k.failed(c, err)
	}
	made.Key = cmp.Or(made.Key, own)
	return made, nil
}

// store creates a key in the control tables and prints it.
func (k *keyFlags) store(c *cobra.Command) error {
	if err := k.why(c); err != nil {
		if k.reason == "" {
			err = fmt.Errorf("%w, or make a key for a plans file with --offline", err)
		}
		return err
	}
	to, err := k.connect(c)
	if err != nil {
		return err
	}
	made, err := k.create(c, to)
	if err != nil {
		return err
	}
	if k.json {
		return writeJSON(c.OutOrStdout(), made)
	}
	return writeKey(c, made)
}

func writeKey(c *cobra.Command, made *operate.CreateKeyResponse) error {
	fmt.Fprintf(c.ErrOrStderr(), "sluice: key %s is stored, version %d; the key itself is shown only now\n",
		shown(made.Item.Key), made.Item.Version)
	_, err := fmt.Fprintln(c.OutOrStdout(), made.Key)
	return err
}

// rotated is the output of 'sluice key rotate --json'.
type rotated struct {
	operate.CreateKeyResponse

	Replaced *control.Item  `json:"replaced,omitempty"` // the old key, as it is stored now
	Error    *operate.Error `json:"error,omitempty"`    // why the old key stays as it was
}

func newKeyRotateCommand() *cobra.Command {
	var k keyFlags
	var overlap time.Duration
	c := &cobra.Command{
		Use: "rotate KEY-ID", Short: "Create a key in the place of another, which ends after an overlap",
		Long: `Creates another key of the same tenant and subject, and prints it. The old key, which is
named by its id, is accepted until --overlap has passed, and refused from then on.`,
		Example: "  sluice key rotate key-7hq2mzw4bd --overlap 7d --reason 'once a year'\n" +
			"  sluice key rotate key-7hq2mzw4bd --overlap 0s --reason 'it was in a log'",
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkKeyID(args[0]); err != nil {
				return usage(err)
			}
			if err := k.why(c); err != nil {
				return err
			}
			return k.rotate(c, args[0], overlap)
		},
	}
	k.writes(c)
	k.ofKey(c.Flags())
	durationFlag(c.Flags(), &overlap, "overlap", 24*time.Hour, 0,
		"accept the old key for `DURATION`, such as 24h or 7d; "+
			"0s: refuse it at once")
	return c
}

// rotate creates a key like an old one, prints it, and lets the old one end.
func (k *keyFlags) rotate(c *cobra.Command, id string, overlap time.Duration) error {
	to, err := k.connect(c)
	if err != nil {
		return err
	}
	old, err := client.Do(c.Context(), to, operate.Get, &operate.GetRequest{Table: control.Keys, Key: id})
	if err != nil {
		return k.failed(c, err)
	}
	state, body := stateOfKey(old, time.Now())
	if state != keyValid {
		return k.failed(c, fmt.Errorf("key %s is %s: nothing was written; make a key with 'sluice key create'",
			shown(id), state))
	}
	k.request.Tenant, k.request.Subject = body.Tenant, body.Subject
	made, err := k.create(c, to)
	if err != nil {
		return err
	}
	out := rotated{CreateKeyResponse: *made}
	if !k.json {
		if err := writeKey(c, made); err != nil {
			return err
		}
	}
	end := operate.KeyRequest{ID: id, Reason: k.reason, Expect: &old.Version}
	if overlap > 0 {
		end.After = time.Now().Add(overlap).UTC().Truncate(time.Second)
	}
	out.Replaced, err = client.Do(c.Context(), to, operate.RevokeKey, &end)
	if err != nil {
		err = fmt.Errorf("the new key is stored, and the old key %s stays as it was: %w", shown(id), err)
		out.Error = jsonError(err)
	}
	switch {
	case k.json:
		return errors.Join(writeJSON(c.OutOrStdout(), &out), err)
	case err != nil:
		return err
	case overlap > 0:
		_, replaced := stateOfKey(out.Replaced, time.Now()) // a key that would have ended earlier still does
		fmt.Fprintf(c.ErrOrStderr(), "sluice: the old key %s is accepted until %s\n", shown(id), day(replaced.Expires))
	default:
		fmt.Fprintf(c.ErrOrStderr(), "sluice: the old key %s is revoked\n", shown(id))
	}
	return nil
}

// keyBody is what the commands read of a stored key.
type keyBody struct {
	Tenant, Subject, Pepper string
	Revoked                 bool
	Expires                 time.Time
}

const keyValid = "valid"

// stateOfKey reads a stored key, and says whether it is valid.
func stateOfKey(i *control.Item, now time.Time) (state string, k keyBody) {
	switch err := json.Unmarshal(i.Body, &k); {
	case i.Deleted:
		return "deleted", k
	case err != nil:
		return "unreadable", k
	case k.Revoked:
		return "revoked", k
	case !k.Expires.IsZero() && !k.Expires.After(now):
		return "expired", k
	}
	return keyValid, k
}

func newKeyListCommand() *cobra.Command {
	var tenant string
	c := newListCommand(&cobra.Command{
		Use: "list", Short: "List the stored API keys",
		Long:    "Lists the ids of the stored API keys. The keys themselves are not stored and cannot be shown.",
		Example: "  sluice key list --tenant acme",
	}, control.Keys, "KEY TENANT SUBJECT STATE EXPIRES PEPPER", func(i *control.Item) []string {
		state, k := stateOfKey(i, time.Now())
		if tenant != "" && k.Tenant != tenant {
			return nil
		}
		return []string{i.Key, k.Tenant, k.Subject, state, day(k.Expires), k.Pepper}
	})
	c.Flags().StringVar(&tenant, "tenant", "", "list only the keys of `TENANT`")
	return c
}

func newKeyRevokeCommand() *cobra.Command {
	r := new(operate.KeyRequest)
	return newOperation(&cobra.Command{
		Use: "revoke KEY-ID", Short: "Refuse an API key from now on, for ever",
		Long:    "Revokes a key by its id, which 'sluice key list' shows. A revoked key stays revoked.",
		Example: "  sluice key revoke key-7hq2mzw4bd --reason 'it was in a log'",
	}, operate.RevokeKey, r, &operation{args: []*string{&r.ID}, requestReason: &r.Reason,
		check: func() error { return checkKeyID(r.ID) }}, printWritten("key %s is revoked", &r.ID))
}

// checkKeyID returns an error for an argument that is a key.
func checkKeyID(id string) error {
	if identity.CheckKey(id) == nil && len(id) > 40 {
		return errors.New("the argument is an API key, not the id of a key; it is now in your shell's history, so " +
			"revoke it: 'sluice key list' shows its id")
	}
	return nil
}
