package cell_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/sluicelimits/sluice/internal/cell"
)

var noon = time.Date(2026, time.March, 2, 12, 0, 0, 0, time.UTC)

// role hands out credentials.
type role struct {
	aws.Credentials
	err   error
	calls int
}

func (r *role) Retrieve(context.Context) (aws.Credentials, error) {
	r.calls++
	return r.Credentials, r.err
}

func example(session string) *role {
	return &role{Credentials: aws.Credentials{
		AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", SessionToken: session,
	}}
}

// The service computes the signature anew and compares: one byte off, and nobody gets in. The tokens here were computed
// apart, by the rules of Signature Version 4 alone.
func TestToken(t *testing.T) {
	for _, tt := range []struct {
		name    string
		cache   string
		session string
		want    string
	}{
		{"a replication group", "counters-eu", "",
			"counters-eu/?Action=connect&User=sluice&X-Amz-Algorithm=AWS4-HMAC-SHA256&" +
				"X-Amz-Credential=AKIDEXAMPLE%2F20260302%2Feu-west-1%2Felasticache%2Faws4_request&" +
				"X-Amz-Date=20260302T120000Z&" +
				"X-Amz-Expires=900&X-Amz-SignedHeaders=host&" +
				"X-Amz-Signature=5c36d38c04b1449149d6cb506e978e2812d9478c8eb3969939dd0bf781d4f3d3"},
		{"a name in capitals", "Counters-EU", "",
			"counters-eu/?Action=connect&User=sluice&X-Amz-Algorithm=AWS4-HMAC-SHA256&" +
				"X-Amz-Credential=AKIDEXAMPLE%2F20260302%2Feu-west-1%2Felasticache%2Faws4_request&" +
				"X-Amz-Date=20260302T120000Z&" +
				"X-Amz-Expires=900&X-Amz-SignedHeaders=host&" +
				"X-Amz-Signature=5c36d38c04b1449149d6cb506e978e2812d9478c8eb3969939dd0bf781d4f3d3"},
		{"from a session", "counters-eu", "session/token+=",
			"counters-eu/?Action=connect&User=sluice&X-Amz-Algorithm=AWS4-HMAC-SHA256&" +
				"X-Amz-Credential=AKIDEXAMPLE%2F20260302%2Feu-west-1%2Felasticache%2Faws4_request&" +
				"X-Amz-Date=20260302T120000Z&" +
				"X-Amz-Expires=900&X-Amz-Security-Token=session%2Ftoken%2B%3D&X-Amz-SignedHeaders=host&" +
				"X-Amz-Signature=c980510206d000074fae0cf2fd8b5b3ec49efae7b46bcf8a06e0f656d54ae87b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := cell.NewCacheSigner(cell.CacheSignerConfig{Cache: tt.cache, User: "sluice", Region: "eu-west-1",
				Credentials: example(tt.session), Now: func() time.Time { return noon }})
			user, token, err := s.Credentials(t.Context())
			if err != nil || user != "sluice" {
				t.Fatalf("user %q, %v; want sluice", user, err)
			}
			// The order of a query's parameters means nothing to the service.
			if got, want := parts(t, token), parts(t, tt.want); got != want {
				t.Errorf("token\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// parts is the token with its parameters in order.
func parts(t *testing.T, token string) string {
	t.Helper()
	host, query, ok := strings.Cut(token, "/?")
	values, err := url.ParseQuery(query)
	if !ok || err != nil {
		t.Fatalf("token %q: %v", token, err)
	}
	return host + " " + values.Encode()
}

// A token is used again while it is good, and replaced before it or its role's credentials end: an old one is refused.
func TestRenewal(t *testing.T) {
	now := noon
	r := example("")
	s := cell.NewCacheSigner(cell.CacheSignerConfig{Cache: "c", User: "u", Region: "eu-west-1", Credentials: r,
		Now: func() time.Time { return now }})
	at := func(after time.Duration) string {
		t.Helper()
		now = noon.Add(after)
		_, token, err := s.Credentials(t.Context())
		if err != nil {
			t.Fatalf("after %s: %v", after, err)
		}
		return token
	}
	first := at(0)
	if again := at(11 * time.Minute); again != first || r.calls != 1 {
		t.Errorf("after 11 minutes the credentials were asked for %d times, want once", r.calls)
	}
	second := at(13 * time.Minute)
	if second == first {
		t.Error("after 13 of 15 minutes the token is the old one")
	}
	r.CanExpire, r.Expires = true, noon.Add(40*time.Minute)
	third := at(30 * time.Minute)
	if fourth := at(38 * time.Minute); fourth == third {
		t.Error("two minutes before the credentials end the token is still that of eight minutes ago")
	}
	now = noon.Add(41 * time.Minute)
	if _, _, err := s.Credentials(t.Context()); err == nil {
		t.Error("credentials that have expired sign a token")
	}
	r.err = errors.New("no role")
	if _, _, err := s.Credentials(t.Context()); !errors.Is(err, r.err) {
		t.Errorf("without credentials: %v, want %v", err, r.err)
	}
}
