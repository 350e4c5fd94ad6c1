package operate

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/request/identity"
)

// CreateKeyRequest asks for a key. If Hash and Pepper are set, the caller has made the key; otherwise CreateKey makes
// it.
type CreateKeyRequest struct {
	Tenant  string     `json:"tenant"`
	Subject string     `json:"subject,omitempty"`
	ID      string     `json:"id,omitempty"` // empty: a random id
	Expires *time.Time `json:"expires,omitempty"`
	Hash    string     `json:"hash,omitempty"`   // 64 hex digits
	Pepper  string     `json:"pepper,omitempty"` // id of the pepper
	Reason  string     `json:"reason"`
}

// CreateKeyResponse holds the new key. Its text is stored nowhere else.
type CreateKeyResponse struct {
	Key  string        `json:"key,omitempty"` // empty if the caller has made the key
	Item *control.Item `json:"item"`
}

// CreateKey stores the hash of a key. If the answer is lost, the text of the key is lost too: revoke the key and
// create another.
func (s *Control) CreateKey(ctx context.Context, actor string, r *CreateKeyRequest) (*CreateKeyResponse, error) {
	if err := checkReason(r.Reason); err != nil {
		return nil, err
	}
	if r.Expires != nil && !r.Expires.After(s.c.Now()) {
		return nil, Refuse(Invalid, "expires: %s is in the past", r.Expires.UTC().Format(time.RFC3339))
	}
	text, hash, pepper := "", r.Hash, r.Pepper
	switch {
	case (hash == "") != (pepper == ""):
		return nil, Refuse(Invalid, "hash and pepper go together")
	case hash == "":
		if s.c.Hash == nil {
			return nil, Refuse(Unsupported, "no pepper is available here: make the key yourself, and send "+
				"its hash and the id of the pepper")
		}
		text = identity.NewKey()
		var err error
		if pepper, hash, err = s.c.Hash(ctx, text); err != nil {
			return nil, s.tableError(ctx, "read the pepper", err)
		}
	}
	id := r.ID
	if id == "" {
		id = "key-" + randomID()
	}
	body := tree{"id": id, "tenant": r.Tenant, "hash": hash, "pepper": pepper}
	if r.Subject != "" {
		body["subject"] = r.Subject
	}
	if r.Expires != nil {
		body["expires"] = r.Expires.UTC().Format(time.RFC3339Nano)
	}
	raw, err := events.MarshalCanonical(body)
	if err != nil {
		return nil, Refuse(Invalid, "the key: %v", err)
	}
	request := &ApplyRequest{Reason: r.Reason, Changes: []Change{{Table: control.Keys, Key: id, Body: raw}}}
	_, err = s.apply(ctx, actor, request, text != "")
	if err != nil {
		return nil, err
	}
	item, err := s.Get(ctx, actor, &GetRequest{Table: control.Keys, Key: id})
	if err != nil {
		return nil, err
	}
	return &CreateKeyResponse{text, item}, nil
}

// randomID returns 10 random characters.
func randomID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))[:10]
}

// KeyRequest names a key by its id.
type KeyRequest struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
	Expect *int64 `json:"expect,omitempty"`

	// After is when the key is refused from; zero: at once, and for good.
	After time.Time `json:"after,omitzero"`
}

// RevokeKey refuses the key, at once or from a time on that is in the future. A revoked key cannot be restored: create
// another. A key that ends earlier by itself keeps its end.
func (s *Control) RevokeKey(ctx context.Context, actor string, r *KeyRequest) (*control.Item, error) {
	if !r.After.IsZero() && !r.After.After(s.c.Now()) {
		return nil, Refuse(Invalid, "after: %s is in the past", r.After.UTC().Format(time.RFC3339))
	}
	return s.change(ctx, actor, change{table: control.Keys, key: r.ID, what: "key", reason: r.Reason,
		expect: r.Expect, edit: func(body tree) error {
			if r.After.IsZero() {
				body["revoked"] = true
				return nil
			}
			text, _ := body["expires"].(string)
			if ends, err := time.Parse(time.RFC3339, text); err != nil || ends.After(r.After) {
				body["expires"] = r.After.UTC().Format(time.RFC3339Nano)
			}
			return nil
		}})
}
