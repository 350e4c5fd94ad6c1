package secrets_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/cell/secrets"
	"github.com/sluicelimits/sluice/internal/testkit/logtest"
	"github.com/sluicelimits/sluice/internal/testkit/secretstest"
)

// Guarantees that nothing runs after Close, since a Lambda function that must end has little time.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const name = "sluice/eu-1"

// Values that must be kept secret. Nothing that is logged or printed may contain any of them.
var (
	pepper1    = []byte("PEPPER-one-is-not-for-logs")
	pepper2    = []byte("PEPPER-two-is-not-for-logs")
	addressKey = []byte("ADDRESSES-are-named-with-this-key")
	passwords  = []string{"PASSWORD-first-one", "PASSWORD-second-one"}
)

// form is the content of a secret that a test makes.
type form struct {
	Peppers    map[string][]byte `json:"peppers,omitempty"`
	AddressKey []byte            `json:"addressKey,omitempty"`
	Redis      *redisForm        `json:"redis,omitempty"`
}

type redisForm struct {
	Username string `json:"username,omitempty"`
	Password string `json:"password"`
}

func (f form) text() string {
	b, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func wholeForm() form {
	return form{Peppers: map[string][]byte{"p1": pepper1}, AddressKey: addressKey,
		Redis: &redisForm{"sluice", passwords[0]}}
}

// secretsIn returns which of the secret values a text contains, in any encoding in which they occur; "" if none.
func secretsIn(text string) string {
	for _, secret := range append([]string{string(pepper1), string(pepper2), string(addressKey)}, passwords...) {
		for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), secret[:9]} {
			if strings.Contains(text, form) {
				return form
			}
		}
	}
	return ""
}

func wantSilent(t *testing.T, what, text string) {
	t.Helper()
	if secret := secretsIn(text); secret != "" {
		t.Errorf("%s shows %q: %s", what, secret, text)
	}
}

// inside is a transport that calls the local substitute without a network, so that both use the virtual clock.
type inside struct{ m *secretstest.Manager }

func (i inside) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			resp, err = nil, io.ErrUnexpectedEOF
		default:
			panic(p)
		}
	}()
	w := httptest.NewRecorder()
	i.m.ServeHTTP(w, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return w.Result(), nil
}

// sdk returns the real client.
func sdk(m *secretstest.Manager, change ...func(*secretsmanager.Options)) *secretsmanager.Client {
	return secretsmanager.New(secretsmanager.Options{
		Region: "eu-west-1", BaseEndpoint: aws.String("http://secrets.test"),
		HTTPClient:  &http.Client{Transport: inside{m}},
		Credentials: credentials.NewStaticCredentialsProvider("local", "local", ""),
	}, change...)
}

// lines collects log lines.
type lines struct{ logtest.Buffer }

func (l *lines) count(part string) int { return strings.Count(l.String(), part) }

// open makes a cache. At the end of the test it closes the cache and checks the log.
func open(t *testing.T, client secrets.Client, change ...func(*secrets.Config)) (*secrets.Cache, *lines) {
	t.Helper()
	log := new(lines)
	c := secrets.Config{Client: client, ID: name, Log: slog.New(slog.NewJSONHandler(log, nil))}
	for _, f := range change {
		f(&c)
	}
	s, err := secrets.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		wantSilent(t, "the log", log.String())
	})
	return s, log
}

// opened returns a Secrets Manager that has the whole secret, and a cache that has read it.
func opened(t *testing.T) (*secretstest.Manager, *secrets.Cache) {
	m := new(secretstest.Manager)
	m.Set(name, wholeForm().text())
	s, _ := open(t, sdk(m))
	get(t, s)
	return m, s
}

func waitFor(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
	synctest.Wait()
}

// get returns the present values, which must exist.
func get(t *testing.T, s *secrets.Cache) *secrets.Values {
	t.Helper()
	v, err := s.Get(context.Background(), time.Now())
	if err != nil {
		t.Fatalf("Get = %v, want values", err)
	}
	return v
}

// wantUnavailable fails unless Get returns ErrUnavailable with the cause.
func wantUnavailable(t *testing.T, s *secrets.Cache, cause string) {
	t.Helper()
	v, err := s.Get(context.Background(), time.Now())
	if !errors.Is(err, secrets.ErrUnavailable) || !strings.Contains(err.Error(), cause) ||
		!strings.Contains(err.Error(), name) || v != nil {
		t.Errorf("Get = %v, %v; want ErrUnavailable, the secret's name and %q", v, err, cause)
	}
	if err != nil {
		wantSilent(t, "the error", err.Error())
	}
}
