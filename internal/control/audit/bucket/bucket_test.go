package bucket_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/audit/audittest"
	"github.com/sluicelimits/sluice/internal/control/audit/bucket"
	"github.com/sluicelimits/sluice/internal/testkit/s3test"
)

func open(t *testing.T, b *s3test.Bucket) *bucket.Archive {
	t.Helper()
	a := bucket.New(b.Client(), s3test.Name)
	return a
}

func TestContract(t *testing.T) {
	for _, mode := range []string{"", "GOVERNANCE", "COMPLIANCE"} {
		t.Run("mode "+mode, func(t *testing.T) {
			audittest.Run(t, func(t *testing.T) func() audit.Archive {
				b := s3test.New(t, s3test.Config{Lock: mode != "", Mode: mode, Days: 1, PageSize: 3})
				return func() audit.Archive { return open(t, b) }
			})
		})
	}
}

// careless puts objects without a condition.
type careless struct{ *s3.Client }

func (c careless) PutObject(
	ctx context.Context, in *s3.PutObjectInput, o ...func(*s3.Options),
) (*s3.PutObjectOutput, error) {
	in.IfNoneMatch = nil
	return c.Client.PutObject(ctx, in, o...)
}

// shortsighted reads only the first page of a list.
type shortsighted struct{ *s3.Client }

func (c shortsighted) ListObjectVersions(
	ctx context.Context, in *s3.ListObjectVersionsInput, o ...func(*s3.Options),
) (*s3.ListObjectVersionsOutput, error) {
	out, err := c.Client.ListObjectVersions(ctx, in, o...)
	if err == nil {
		out.IsTruncated = aws.Bool(false)
	}
	return out, err
}

// Guarantees that the contract detects an archive that overwrites objects, and one that reads only the first page of a
// list.
func TestContractFindsBrokenArchives(t *testing.T) {
	for want, open := range map[string]func(*s3.Client) audit.Archive{
		"one of several": func(c *s3.Client) audit.Archive { return bucket.New(careless{c}, s3test.Name) },
		"lists":          func(c *s3.Client) audit.Archive { return bucket.New(shortsighted{c}, s3test.Name) },
	} {
		broken := audittest.Broken(t, func(t *testing.T) func() audit.Archive {
			a := open(s3test.New(t, s3test.Config{PageSize: 3}).Client())
			return func() audit.Archive { return a }
		})
		if !strings.Contains(strings.Join(broken, "\n"), want) {
			t.Errorf("the contract finds %q wrong, want one with %q", broken, want)
		}
	}
}

// Guarantees that a stored record cannot be removed during its retention: in COMPLIANCE mode by nobody, in GOVERNANCE
// mode only by users who may bypass it; and that the retention is the bucket's own, which the writer does not choose.
func TestLocks(t *testing.T) {
	for _, mode := range []string{"GOVERNANCE", "COMPLIANCE"} {
		now := time.Now()
		b := s3test.New(t, s3test.Config{
			Lock: true, Mode: mode, Days: 1, Now: func() time.Time { return now },
			Fault: func(r *http.Request) *s3test.Fault {
				if r.Header.Get("X-Amz-Object-Lock-Mode") != "" {
					t.Error("a put sets the mode of a lock, want that the bucket's default applies")
				}
				return nil
			},
		})
		a := open(t, b)
		want := audit.Lock{Enabled: true, Mode: mode, Period: 24 * time.Hour}
		if lock, err := a.Lock(t.Context()); err != nil || lock != want {
			t.Fatalf("the lock of the bucket: %+v, %v, want %+v", lock, err, want)
		}
		if _, err := a.Put(t.Context(), "audit/a/1", []byte("one")); err != nil {
			t.Fatal(err)
		}
		e := onlyEntry(t, a)
		o, err := a.Get(t.Context(), e)
		if err != nil || !o.Locked || o.LockMode != mode || o.LockedUntil.Sub(now).Abs() < 23*time.Hour {
			t.Errorf("%s: got the object %+v, error %v; want it locked in this mode for a day", mode, o, err)
		}
		remove := func(bypass bool) error {
			_, err := b.Client().DeleteObject(t.Context(), &s3.DeleteObjectInput{
				Bucket: aws.String(s3test.Name), Key: &e.Name, VersionId: &e.Version,
				BypassGovernanceRetention: &bypass,
			})
			return err
		}
		if remove(false) == nil {
			t.Errorf("%s: got no error on removing a locked version, want one", mode)
		}
		if err := remove(true); (err == nil) != (mode == "GOVERNANCE") {
			t.Errorf("%s: got the error %v on removing a locked version with a bypass, want one unless the mode is "+
				"GOVERNANCE", mode, err)
		}
		if now = now.Add(25 * time.Hour); mode == "COMPLIANCE" && remove(false) != nil {
			t.Error("got an error on removing a version whose retention has ended, want none")
		}
	}
	for _, lockable := range []bool{false, true} {
		plain := open(t, s3test.New(t, s3test.Config{Lock: lockable}))
		if lock, err := plain.Lock(t.Context()); err != nil || lock != (audit.Lock{Enabled: lockable}) {
			t.Errorf("the lock of a bucket without a default, Object Lock %t: got %+v, error %v; want no mode",
				lockable, lock, err)
		}
	}
	denied := open(t, s3test.New(t, s3test.Config{Fault: func(*http.Request) *s3test.Fault {
		return &s3test.Fault{Status: http.StatusForbidden, Code: "AccessDenied"}
	}}))
	if lock, err := denied.Lock(t.Context()); !errors.Is(err, audit.ErrDenied) {
		t.Errorf("the lock of a bucket that may not be asked: %+v, %v, want ErrDenied", lock, err)
	}
}

// onlyEntry returns the only entry of an archive.
func onlyEntry(t *testing.T, a audit.Archive) audit.Entry {
	t.Helper()
	var all []audit.Entry
	for e, err := range a.List(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	if len(all) != 1 {
		t.Fatalf("the archive has %v, want one entry", all)
	}
	return all[0]
}

// Guarantees that versions and markers that hide an object are listed, newest first, and that the hidden object can be
// read.
func TestVersions(t *testing.T) {
	for _, size := range []int{1, 2, 3, 1000} {
		b := s3test.New(t, s3test.Config{Lock: true, Mode: "GOVERNANCE", Days: 1, PageSize: size})
		a := open(t, b)
		for _, name := range []string{"audit/a/1", "audit/a/2 +%&", "audit/a/3"} {
			if _, err := a.Put(t.Context(), name, []byte("first")); err != nil {
				t.Fatal(err)
			}
		}
		b.Overwrite("audit/a/2 +%&", []byte("second"))
		b.Hide("audit/a/3")
		var got []string
		for e, err := range a.List(t.Context(), "audit/", "") {
			if err != nil {
				t.Fatal(err)
			}
			if e.DeleteMarker {
				got = append(got, e.Name+" hidden")
				continue
			}
			o, err := a.Get(t.Context(), e)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, e.Name+" "+string(o.Data))
		}
		want := "audit/a/1 first, audit/a/2 +%& second, audit/a/2 +%& first, audit/a/3 hidden, audit/a/3 first"
		if got := strings.Join(got, ", "); got != want {
			t.Errorf("pages of %d:\ngot  %s\nwant %s", size, got, want)
		}
		if _, err := a.Get(t.Context(), audit.Entry{Name: "audit/a/3"}); !errors.Is(err, audit.ErrNotFound) {
			t.Errorf("a read without a version of a hidden object: %v, want ErrNotFound", err)
		}
	}
}

// Guarantees that a write handles refusals, conflicts, throttling and lost answers correctly: it tries again if that
// helps, returns an error if not, and makes one object.
func TestFaults(t *testing.T) {
	const forever = 1 << 30
	tests := []struct {
		name  string
		fault s3test.Fault
		times int64 // number of writes that fail
		fails bool
		made  bool
	}{
		{"throttled twice", s3test.Fault{Status: 503, Code: "SlowDown"}, 2, false, true},
		{"throttled on and on", s3test.Fault{Status: 503, Code: "SlowDown"}, forever, true, false},
		{"two writers at once", s3test.Fault{Status: 409, Code: "ConditionalRequestConflict"}, 3, false, true},
		{"writers without end", s3test.Fault{Status: 409, Code: "ConditionalRequestConflict"}, forever, true, false},
		{"refused", s3test.Fault{Status: 403, Code: "AccessDenied"}, forever, true, false},
		{"an answer that is lost", s3test.Fault{Lost: true}, 1, false, false},
		{"an error inside S3", s3test.Fault{Status: 500, Code: "InternalError"}, 1, false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var puts atomic.Int64
			fault := func(r *http.Request) *s3test.Fault {
				if r.Method == http.MethodPut && puts.Add(1) <= tt.times {
					return &tt.fault
				}
				return nil
			}
			b := s3test.New(t, s3test.Config{Lock: true, Mode: "GOVERNANCE", Days: 1, Fault: fault})
			made, err := open(t, b).Put(t.Context(), "audit/a/1", []byte("one"))
			if (err != nil) != tt.fails || made != tt.made || errors.Is(err, audit.ErrUnequal) {
				t.Errorf("made %t, %v; want made %t, an error: %t", made, err, tt.made, tt.fails)
			}
			if n := len(b.Versions("audit/a/1")); (n == 0) != tt.fails || n > 1 {
				t.Errorf("got %d versions, want none if the put fails, or else one", n)
			}
		})
	}
}

// Guarantees that an object whose content S3 returns to no reader is distinguished from an S3 that refuses, throttles
// or does not answer: a writer can make such an object, but nobody can make S3 answer in these ways.
func TestUnreadable(t *testing.T) {
	const name = "audit/a/1"
	sealed := func(how s3test.Seal, fault *s3test.Fault) (get, put error) {
		b := s3test.New(t, s3test.Config{Lock: true, Mode: "GOVERNANCE", Days: 1,
			Fault: func(r *http.Request) *s3test.Fault {
				if r.Method == http.MethodPut {
					return nil
				}
				return fault
			}})
		b.Overwrite(name, []byte("one"))
		b.Seal(name, how)
		once := func(o *s3.Options) { o.RetryMaxAttempts = 1 }
		a := bucket.New(b.Client(once), s3test.Name)
		_, get = a.Get(t.Context(), audit.Entry{Name: name, Version: "v00000001"})
		made, put := a.Put(t.Context(), name, []byte("one"))
		if made || len(b.Versions(name)) != 1 {
			t.Errorf("%q: got another version by a second put, want one", how)
		}
		return get, put
	}
	for _, how := range []s3test.Seal{s3test.Archived, s3test.CustomerKey, s3test.ForeignKey, s3test.DisabledKey} {
		get, put := sealed(how, nil)
		if !errors.Is(get, audit.ErrUnreadable) || !errors.Is(put, audit.ErrUnreadable) {
			t.Errorf("%s: get %v, put %v; want ErrUnreadable", how, get, put)
		}
	}
	for what, fault := range map[string]s3test.Fault{
		"refused": {Status: 403, Code: "AccessDenied"}, "throttled": {Status: 503, Code: "SlowDown"},
		"no bucket": {Status: 404, Code: "NoSuchBucket"}, "another wrong request": {Status: 400,
			Code: "InvalidRequest"},
		"credentials that ended": {Status: 400, Code: "ExpiredToken"}, "KMS is busy": {Status: 400,
			Code: "KMS.ThrottlingException"},
	} {
		for _, how := range []s3test.Seal{"", s3test.ForeignKey} {
			get, put := sealed(how, &fault)
			if get == nil || put == nil || errors.Is(get, audit.ErrUnreadable) || errors.Is(put, audit.ErrUnreadable) ||
				errors.Is(put, audit.ErrUnequal) {
				t.Errorf("%s: get %v, put %v; want errors to try again", what, get, put)
			}
		}
	}
}

// Guarantees that a refused object with an ordinary key is not reported as unreadable, since the reader may lack a
// right.
func TestRefusedAlone(t *testing.T) {
	b := s3test.New(t, s3test.Config{Fault: func(r *http.Request) *s3test.Fault {
		if r.Method == http.MethodGet {
			return &s3test.Fault{Status: http.StatusForbidden, Code: "AccessDenied"}
		}
		return nil
	}})
	b.Overwrite("audit/a/1", []byte("one"))
	if _, err := open(t, b).Get(t.Context(), audit.Entry{Name: "audit/a/1"}); err == nil ||
		errors.Is(err, audit.ErrUnreadable) {
		t.Errorf("get %v, want an error that is not ErrUnreadable", err)
	}
}

// Guarantees that an object that is hidden between two tries is written again, and does not count as stored.
func TestHiddenInBetween(t *testing.T) {
	var b *s3test.Bucket
	var gets atomic.Int64
	b = s3test.New(t, s3test.Config{Fault: func(r *http.Request) *s3test.Fault {
		if r.Method == http.MethodGet && gets.Add(1) == 1 {
			b.Hide("audit/a/1")
		}
		return nil
	}})
	a := open(t, b)
	b.Overwrite("audit/a/1", []byte("one"))
	if made, err := a.Put(t.Context(), "audit/a/1", []byte("one")); err != nil || !made {
		t.Errorf("got made %t, error %v; want an object", made, err)
	}
}

// Guarantees that a wrong bucket is an error, and never an empty archive.
func TestConfig(t *testing.T) {
	client := s3test.New(t, s3test.Config{}).Client()
	a := bucket.New(client, "another-bucket")
	_, put := a.Put(t.Context(), "audit/a/1", nil)
	_, get := a.Get(t.Context(), audit.Entry{Name: "audit/a/1"})
	_, lock := a.Lock(t.Context())
	var list error
	for _, err := range a.List(t.Context(), "", "") {
		list = err
	}
	if put == nil || get == nil || errors.Is(get, audit.ErrNotFound) || lock == nil ||
		errors.Is(lock, audit.ErrDenied) || list == nil {
		t.Errorf("an absent bucket: got the errors put %v, get %v, lock %v, list %v; want one of each, not of an "+
			"absent object", put, get, lock, list)
	}
}
