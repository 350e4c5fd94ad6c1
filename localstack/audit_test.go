package localstack_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/dynamo"
	"github.com/sluicelimits/sluice/localstack/stand"
	"github.com/sluicelimits/sluice/streams/balancer"
	"github.com/sluicelimits/sluice/streams/delivery"
)

// retention is the one in localstack/deployment.yaml.
const retention = 24 * time.Hour

// unique returns a name that no earlier run on the same LocalStack has used.
func unique(prefix string) string {
	return prefix + "-" + strconv.FormatInt(time.Now().UnixMilli(), 36)
}

// trail gives access to the audit trail with every permission.
type trail struct {
	*testing.T

	stand *stand.Stand
	s3    *s3.Client
	db    *dynamodb.Client
}

func newTrail(t *testing.T, s *stand.Stand) *trail {
	config := s.AWS(s.Region())
	return &trail{t, s, s3.NewFromConfig(config, func(o *s3.Options) { o.UsePathStyle = true }),
		dynamodb.NewFromConfig(config)}
}

func (a *trail) bucket() *string { return aws.String(a.stand.Bucket()) }

// must fails the test on an error of the test's own preparations.
func (a *trail) must(err error) {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
}

// verdict is the report of sluice audit verify.
type verdict struct {
	OK       bool     `json:"ok"`
	Objects  int      `json:"objects"`
	Rejected int      `json:"rejected"`
	Locks    bool     `json:"object_lock"`
	Modes    []string `json:"lock_modes"`
	Anchors  int      `json:"anchors"`
	Newest   string   `json:"last_anchor"` // DAY=HASH
	Breaks   []finding
	Notices  []finding
}

type finding struct {
	Kind, Table, Key string
	Version          int64
	Object, Detail   string
	Count            int64
}

// verifyTrail runs sluice audit verify, and returns its output. holds is true if the exit status is 0.
func verifyTrail(ctx context.Context, s *stand.Stand, args ...string) (text string, holds bool, err error) {
	text, err = s.Sluice(ctx, append([]string{"audit", "verify", "--archive", "s3://" + s.Bucket(), "--tables",
		s.ControlTable("")}, args...)...)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 && strings.Contains(err.Error(), "the audit trail has breaks") {
		return text, false, nil
	}
	return text, err == nil, err
}

// verify returns the report of sluice audit verify, when no change is on its way any more.
func (a *trail) verify() verdict {
	a.Helper()
	text, holds, err := verifyTrail(a.Context(), a.stand, "--json", "--grace", "0s")
	a.must(err)
	var v verdict
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		a.Fatalf("sluice audit verify --json printed %.500s: %v", text, err)
	}
	if v.OK != holds || v.OK != (len(v.Breaks) == 0) {
		a.Fatalf("the exit status says that the trail holds: %t, the report says %t, with %d breaks", holds, v.OK,
			len(v.Breaks))
	}
	return v
}

// wantNoBreaks fails the test unless the trail has no breaks.
func wantNoBreaks(t *testing.T, s *stand.Stand) {
	t.Helper()
	if text, holds, err := verifyTrail(t.Context(), s); err != nil || !holds {
		t.Errorf("the audit trail has breaks: %v\n%s", err, text)
	}
}

// entry is a version of an object, or a delete marker.
type entry struct {
	name, version string
	marker        bool
}

// list returns all versions of all objects whose names have the prefix, the newest version of a name first.
func (a *trail) list(prefix string) []entry {
	a.Helper()
	var all []entry
	pages := s3.NewListObjectVersionsPaginator(a.s3, &s3.ListObjectVersionsInput{Bucket: a.bucket(), Prefix: &prefix})
	for pages.HasMorePages() {
		page, err := pages.NextPage(a.Context())
		a.must(err)
		for i := range page.Versions {
			all = append(all, entry{*page.Versions[i].Key, *page.Versions[i].VersionId, false})
		}
		for i := range page.DeleteMarkers {
			all = append(all, entry{*page.DeleteMarkers[i].Key, *page.DeleteMarkers[i].VersionId, true})
		}
	}
	return all
}

// onlyVersion returns the only version of an object.
func (a *trail) onlyVersion(name string) entry {
	a.Helper()
	all := a.list(name)
	if len(all) != 1 || all[0].marker || all[0].name != name {
		a.Fatalf("%s has the versions %v, want 1", name, all)
	}
	return all[0]
}

func (a *trail) get(e entry) []byte {
	a.Helper()
	out, err := a.s3.GetObject(a.Context(), &s3.GetObjectInput{Bucket: a.bucket(), Key: &e.name, VersionId: &e.version})
	a.must(err)
	defer out.Body.Close()
	data, err := io.ReadAll(out.Body)
	a.must(err)
	return data
}

// remove removes a version, with the permission to bypass the retention.
func (a *trail) remove(e entry) {
	a.Helper()
	// Removing also works at the end of a test, when the context of the test is done.
	_, err := a.s3.DeleteObject(context.WithoutCancel(a.Context()), &s3.DeleteObjectInput{
		Bucket: a.bucket(), Key: &e.name, VersionId: &e.version, BypassGovernanceRetention: aws.Bool(true),
	})
	a.must(err)
}

// put puts an object, as a new version if there is one of that name. The bucket locks it.
func (a *trail) put(name string, data []byte) entry {
	a.Helper()
	out, err := a.s3.PutObject(context.WithoutCancel(a.Context()), &s3.PutObjectInput{Bucket: a.bucket(), Key: &name,
		Body: bytes.NewReader(data)})
	a.must(err)
	return entry{name: name, version: aws.ToString(out.VersionId)}
}

// putLocked puts an object with a lock that the writer chooses.
func (a *trail) putLocked(name string, data []byte, until time.Time) entry {
	a.Helper()
	out, err := a.s3.PutObject(context.WithoutCancel(a.Context()), &s3.PutObjectInput{
		Bucket: a.bucket(), Key: &name, Body: bytes.NewReader(data),
		ObjectLockMode: s3types.ObjectLockModeGovernance, ObjectLockRetainUntilDate: &until,
	})
	a.must(err)
	return entry{name: name, version: aws.ToString(out.VersionId)}
}

// removeObject removes the only version of an object, and returns a function that puts it back.
func (a *trail) removeObject(name string) (data []byte, back func()) {
	a.Helper()
	e := a.onlyVersion(name)
	data = a.get(e)
	a.remove(e)
	return data, func() { a.put(name, data) }
}

// forge returns an audit record with a change, in the form in which the archiver would have written it.
func (a *trail) forge(data []byte, change func(*events.AuditRecord)) []byte {
	a.Helper()
	e, err := events.Decode(data)
	a.must(err)
	r, ok := e.(*events.AuditRecord)
	if !ok {
		a.Fatalf("this is not an audit record: %s", data)
	}
	change(r)
	forged, err := events.Encode(r)
	a.must(err)
	return forged
}

// replaceRecord replaces a record with a forged one.
func (a *trail) replaceRecord(name string, change func(*events.AuditRecord)) (undo func()) {
	a.Helper()
	data, back := a.removeObject(name)
	forged := a.put(name, a.forge(data, change))
	return func() {
		a.remove(forged)
		back()
	}
}

// row is an item of the tenants table in DynamoDB.
func (a *trail) row(tenant string) map[string]types.AttributeValue {
	a.Helper()
	out, err := a.db.GetItem(a.Context(), &dynamodb.GetItemInput{
		TableName: aws.String(a.stand.ControlTable("tenants")), ConsistentRead: aws.Bool(true), Key: tenantKey(tenant),
	})
	a.must(err)
	return out.Item
}

// write writes an item of the tenants table without Sluice.
func (a *trail) write(item map[string]types.AttributeValue) {
	a.Helper()
	_, err := a.db.PutItem(context.WithoutCancel(a.Context()),
		&dynamodb.PutItemInput{TableName: aws.String(a.stand.ControlTable("tenants")), Item: item})
	a.must(err)
}

// removeRow removes an item of the tenants table. Sluice itself never does this.
func (a *trail) removeRow(tenant string) {
	a.Helper()
	_, err := a.db.DeleteItem(context.WithoutCancel(a.Context()), &dynamodb.DeleteItemInput{
		TableName: aws.String(a.stand.ControlTable("tenants")), Key: tenantKey(tenant),
	})
	a.must(err)
}

func tenantKey(tenant string) map[string]types.AttributeValue {
	return dynamo.KeyOf(tenant)
}

// alter changes one attribute of an item in the tenants table.
func (a *trail) alter(tenant, attribute string, value types.AttributeValue) (undo func()) {
	a.Helper()
	was := a.row(tenant)
	altered := make(map[string]types.AttributeValue, len(was))
	for k, v := range was {
		altered[k] = v
	}
	altered[attribute] = value
	a.write(altered)
	return func() { a.write(was) }
}

// refused fails the test unless S3 refused the request because of a lock.
func (a *trail) refused(what string, err error) {
	a.Helper()
	var said smithy.APIError
	if !errors.As(err, &said) || said.ErrorCode() != "AccessDenied" {
		a.Errorf("%s: %v, want AccessDenied", what, err)
	}
}

// locked checks the lock of every object of the trail, and returns the number of objects.
func (a *trail) locked() int {
	a.Helper()
	n := 0
	for _, e := range a.list(control.ObjectPrefix) {
		out, err := a.s3.GetObjectRetention(a.Context(), &s3.GetObjectRetentionInput{Bucket: a.bucket(), Key: &e.name,
			VersionId: &e.version})
		if err != nil {
			a.Errorf("%s: %v", e.name, err)
			continue
		}
		n++
		left := time.Until(aws.ToTime(out.Retention.RetainUntilDate))
		if out.Retention.Mode != s3types.ObjectLockRetentionModeGovernance || left > retention || left < 0 {
			a.Errorf("%s: %s for another %s, want GOVERNANCE and at most %s", e.name, out.Retention.Mode, left,
				retention)
		}
	}
	return n
}

// tampering is something that an attacker with every permission in AWS does to an item with three versions.
type tampering struct {
	name  string
	do    func(a *trail, tenant string) (undo func())
	found finding // Key and Object are left out where they are the tenant's
	rows  int     // writes to the live table; each of them is in its stream
}

func object(tenant string, version int64) string {
	return control.ObjectName(control.Tenants, tenant, version)
}

func tamperings() []tampering {
	is := func(kind control.BreakKind, version int64) finding {
		return finding{Kind: string(kind), Table: "tenants", Version: version, Count: 1}
	}
	text := func(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }
	return []tampering{
		{"a version removed", func(a *trail, tenant string) func() {
			_, back := a.removeObject(object(tenant, 2))
			return back
		}, is(control.MissingVersion, 2), 0},
		{"the newest version removed", func(a *trail, tenant string) func() {
			_, back := a.removeObject(object(tenant, 3))
			return back
		}, is(control.MissingTail, 3), 0},
		{"every version removed", func(a *trail, tenant string) func() {
			_, one := a.removeObject(object(tenant, 1))
			_, two := a.removeObject(object(tenant, 2))
			_, three := a.removeObject(object(tenant, 3))
			return func() { one(); two(); three() }
		}, is(control.MissingTail, 1), 0},
		{"another content put on top", func(a *trail, tenant string) func() {
			name := object(tenant, 2)
			e := a.put(name, a.forge(a.get(a.onlyVersion(name)),
				func(r *events.AuditRecord) { r.Actor = "somebody else" }))
			return func() { a.remove(e) }
		}, is(audit.Replaced, 2), 0},
		{"an altered body in its place", func(a *trail, tenant string) func() {
			return a.replaceRecord(object(tenant, 2), func(r *events.AuditRecord) {
				r.After = bytes.Replace(r.After, []byte(`"rate":12`), []byte(`"rate":99`), 1)
			})
		}, is(control.Altered, 2), 0},
		{"its hash changed", func(a *trail, tenant string) func() {
			return a.replaceRecord(object(tenant, 2),
				func(r *events.AuditRecord) { r.Hash = strings.Repeat("0", len(r.Hash)) })
		}, is(control.WrongHash, 2), 0},
		{"another actor, with the hash that belongs to it", func(a *trail, tenant string) func() {
			return a.replaceRecord(object(tenant, 2), func(r *events.AuditRecord) {
				r.Actor = "somebody else"
				forged := control.FromAudit(r)
				r.Hash = forged.ComputeHash()
			})
		}, is(control.BrokenLink, 3), 0}, // the version after it does not match
		{"hidden by a delete marker", func(a *trail, tenant string) func() {
			name := object(tenant, 2)
			out, err := a.s3.DeleteObject(a.Context(), &s3.DeleteObjectInput{Bucket: a.bucket(), Key: &name})
			a.must(err)
			return func() { a.remove(entry{name: name, version: aws.ToString(out.VersionId)}) }
		}, is(audit.Hidden, 2), 0},
		{"a version that has never been", func(a *trail, tenant string) func() {
			e := a.put(object(tenant, 4), a.forge(a.get(a.onlyVersion(object(tenant, 3))), func(r *events.AuditRecord) {
				r.ItemVersion, r.Before, r.PrevHash = 4, r.After, r.Hash
				forged := control.FromAudit(r)
				r.Hash = forged.ComputeHash()
			}))
			return func() { a.remove(e) }
		}, is(control.Unknown, 4), 0},
		{"the live item altered", func(a *trail, tenant string) func() {
			return a.alter(tenant, dynamo.Reason, text("no reason"))
		}, is(control.WrongHead, 3), 2},
		{"the live item made unreadable", func(a *trail, tenant string) func() {
			return a.alter(tenant, dynamo.Version, text("three"))
		}, is(audit.BadHead, 3), 2},
		{"the live item removed", func(a *trail, tenant string) func() {
			was := a.row(tenant)
			a.removeRow(tenant)
			return func() { a.write(was) }
		}, is(control.Unknown, 3), 2},
		{"an object that is no item's", func(a *trail, tenant string) func() {
			e := a.put(control.ObjectFolder(control.Tenants, tenant)+"0000000000000001.json.bak", []byte("{}"))
			return func() { a.remove(e) }
		}, finding{Kind: string(audit.BadName), Count: 1}, 0},
		{"a lock taken off", func(a *trail, tenant string) func() {
			e := a.onlyVersion(object(tenant, 2))
			was, err := a.s3.GetObjectRetention(a.Context(), &s3.GetObjectRetentionInput{
				Bucket: a.bucket(), Key: &e.name, VersionId: &e.version,
			})
			a.must(err)
			lock := func(r *s3types.ObjectLockRetention) {
				_, err := a.s3.PutObjectRetention(context.WithoutCancel(a.Context()), &s3.PutObjectRetentionInput{
					Bucket: a.bucket(), Key: &e.name, VersionId: &e.version, Retention: r,
					BypassGovernanceRetention: aws.Bool(true),
				})
				a.must(err)
			}
			lock(&s3types.ObjectLockRetention{})
			return func() { lock(was.Retention) }
		}, is(audit.Unlocked, 2), 0},
		{"a lock made shorter", func(a *trail, tenant string) func() {
			name := object(tenant, 2)
			data, back := a.removeObject(name)
			// a writer with s3:PutObjectRetention could do this
			e := a.putLocked(name, data, time.Now().Add(retention/2))
			return func() {
				a.remove(e)
				back()
			}
		}, is(audit.WeakLock, 2), 0},
	}
}

// Guarantees that every change through the deployed control plane has a record that S3 locks, with its author; that the
// trail has no breaks; and that each way of tampering with the records or with the live table, even with every
// permission, is found and named.
func TestAudit(t *testing.T) {
	s := open(t)
	a := newTrail(t, s)
	run, cases := unique("audit"), tamperings()
	tenant := func(i int) string { return fmt.Sprintf("%s-%d", run, i) }
	for version := 1; version <= 3; version++ {
		var tenants strings.Builder
		for i := range cases {
			fmt.Fprintf(&tenants, "  - { id: %s, plan: audit, overrides: [ { id: few, rate: %d } ] }\n", tenant(i),
				10+version)
		}
		apply(t, s, "plans:\n  - id: audit\n    limits: [ { id: few, algorithm: token_bucket, rate: 10, period: 1h, "+
			"burst: 100 } ]\ntenants:\n"+tenants.String())
	}
	// Each is there, under its own name.
	waitFor(t, func(context.Context) error {
		for i := range cases {
			if all := a.list(control.ObjectFolder(control.Tenants, tenant(i))); len(all) != 3 {
				return fmt.Errorf("%s has %d records, want 3", tenant(i), len(all))
			}
		}
		return nil
	})
	wantNoBreaks(t, s) // waits for changes that are on their way
	if v := a.verify(); !v.Locks || !slices.Equal(v.Modes, []string{"GOVERNANCE"}) {
		t.Errorf("the report says locks %t, modes %v", v.Locks, v.Modes)
	}
	if n, objects := a.locked(), a.verify().Objects; n < objects || n == 0 {
		t.Errorf("%d objects are locked, of %d", n, objects)
	}

	t.Run("who", func(t *testing.T) { checkWriters(t, s, tenant(0)) })
	t.Run("locks", func(t *testing.T) { locks(newTrail(t, s), object(tenant(0), 2)) })
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(newTrail(t, s), tenant(i)) })
	}
	if v := a.verify(); !v.OK {
		t.Errorf("at the end the trail has breaks: %+v", v.Breaks)
	}
}

// Guarantees that the deployed anchor function makes the anchor of a day once, signed with the key of the template, and
// that sluice audit verify accepts the anchor with that key from KMS, and with no other key.
func TestAnchor(t *testing.T) {
	s := open(t)
	a := newTrail(t, s)
	apply(t, s, "plans: [ { id: anchored, limits: [ { id: few, algorithm: token_bucket, rate: 10, period: 1h } ] } ]\n")
	wantNoBreaks(t, s) // waits for changes that are on their way
	anchor := "sluice-anchor"
	var last audit.Anchored
	for range 2 {
		out, err := lambda.NewFromConfig(s.AWS(s.Region())).Invoke(t.Context(), &lambda.InvokeInput{
			FunctionName: &anchor, Payload: []byte("{}"),
		})
		a.must(err)
		var made audit.Anchored
		if err := json.Unmarshal(out.Payload, &made); err != nil || out.FunctionError != nil || made.Unread != 0 {
			t.Fatalf("calling the anchor function: %v %s", err, out.Payload)
		}
		if made.Made && (made.Heads == 0 || made.Day == last.Day) {
			t.Errorf("a second anchor was made on one day: %+v, after %+v", made, last)
		}
		last = made
	}
	verify := func(key string) (v verdict) {
		text, _, err := verifyTrail(t.Context(), s, "--json", "--anchor-key", key)
		a.must(err)
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatalf("sluice audit verify --json printed %.500s: %v", text, err)
		}
		return v
	}
	unsaid := []string{
		string(audit.NoAnchors), string(audit.NotChecked), string(audit.NotAnchored), string(audit.LockUnread),
	}
	v := verify(s.Output("sluice-control", "AnchorKey"))
	if !v.OK || v.Anchors == 0 || !strings.HasPrefix(v.Newest, last.Day+"=") ||
		slices.ContainsFunc(v.Notices, func(f finding) bool { return slices.Contains(unsaid, f.Kind) }) {
		t.Errorf("with the anchors' key: %+v, want the newest of %s", v, last.Day)
	}
	another, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.must(err)
	der, err := x509.MarshalPKIXPublicKey(&another.PublicKey)
	a.must(err)
	file := filepath.Join(t.TempDir(), "another.pub")
	a.must(os.WriteFile(file, []byte(base64.StdEncoding.EncodeToString(der)), 0o600))
	bad := func(f finding) bool { return f.Kind == string(audit.BadSignature) }
	if v := verify(file); v.OK || !slices.ContainsFunc(v.Breaks, bad) {
		t.Errorf("with another key: %+v, want a bad signature", v)
	}
}

// checkWriters: each record names its writer, as AWS knows it.
func checkWriters(t *testing.T, s *stand.Stand, tenant string) {
	canary := "sluice-canary"
	began := time.Now()
	out, err := lambda.NewFromConfig(s.AWS(s.Region())).Invoke(t.Context(), &lambda.InvokeInput{FunctionName: &canary,
		Payload: []byte("{}")})
	if err != nil || out.FunctionError != nil {
		t.Fatalf("calling the canary: %v %s", err, out.Payload)
	}
	for item, want := range map[string]string{
		"tenants/" + tenant:         s.Operator.ARN,
		"plans/audit":               s.Operator.ARN,
		"cells/eu-1":                s.Operator.ARN,
		"plans/" + events.CanaryKey: "function:" + canary,
		"cells/" + events.SharesKey: balancer.Actor,
	} {
		waitFor(t, func(ctx context.Context) error {
			text, err := s.Sluice(ctx, "audit", "show", item, "--archive", "s3://"+s.Bucket(), "--json")
			if err != nil {
				return err
			}
			type version struct {
				Version       int64
				Time          time.Time
				Actor, Reason string
			}
			var last version
			for d := json.NewDecoder(strings.NewReader(text)); d.More(); {
				var one version
				if err := d.Decode(&one); err != nil {
					return fmt.Errorf("sluice audit show %s printed %.200q: %w", item, text, err)
				}
				if one.Version > last.Version {
					last = one
				}
			}
			if last.Actor != want || last.Reason == "" {
				return fmt.Errorf("%s was written by %q for %q, want %q and a reason", item, last.Actor, last.Reason,
					want)
			}
			if item == "plans/"+events.CanaryKey && last.Time.Before(began) {
				return fmt.Errorf("the canary has written last at %s, and was called at %s", last.Time, began)
			}
			return nil
		})
	}
	wantNoBreaks(t, s)
}

// locks checks that a locked record cannot be changed by anybody who may not bypass the lock.
func locks(a *trail, name string) {
	e := a.onlyVersion(name)
	want := a.get(e)
	_, err := a.s3.DeleteObject(a.Context(), &s3.DeleteObjectInput{Bucket: a.bucket(), Key: &e.name,
		VersionId: &e.version})
	a.refused("removing a locked version", err)
	_, err = a.s3.PutObjectRetention(a.Context(), &s3.PutObjectRetentionInput{
		Bucket: a.bucket(), Key: &e.name, VersionId: &e.version,
		Retention: &s3types.ObjectLockRetention{Mode: s3types.ObjectLockRetentionModeGovernance,
			RetainUntilDate: aws.Time(time.Now().Add(time.Minute))},
	})
	a.refused("shortening a retention", err)
	_, err = a.s3.PutObject(a.Context(), &s3.PutObjectInput{Bucket: a.bucket(), Key: &e.name,
		Body: strings.NewReader("x"), IfNoneMatch: aws.String("*")})
	var said smithy.APIError
	if !errors.As(err, &said) || said.ErrorCode() != "PreconditionFailed" {
		a.Errorf("a second object with the same name: %v, want PreconditionFailed", err)
	}
	over := a.put(name, []byte("x"))
	defer a.remove(over)
	if over.version == e.version || !bytes.Equal(a.get(e), want) || len(a.list(name)) != 2 {
		a.Errorf("an object put over %v made %v, and the first is %q", e, over, a.get(e))
	}
}

// run tampers, and checks that exactly the expected break is found, in the report for machines and in the one for
// people. The next report shows whether everything was undone.
func (c *tampering) run(a *trail, tenant string) {
	undo := c.do(a, tenant)
	tidy := sync.OnceFunc(undo)
	a.Cleanup(tidy)
	want := c.found
	if want.Table != "" {
		want.Key, want.Object = tenant, object(tenant, want.Version)
	}
	v := a.verify()
	if len(v.Breaks) != 1 {
		a.Fatalf("found %+v, want one of the kind %q", v.Breaks, want.Kind)
	}
	got := v.Breaks[0]
	if got.Detail == "" || !strings.Contains(got.Object, tenant) {
		a.Errorf("found %+v, which does not say what and where", got)
	}
	if got.Detail = ""; want.Object == "" {
		got.Object = ""
	}
	if got != want {
		a.Errorf("found %+v, want %+v", got, want)
	}
	text, holds, err := verifyTrail(a.Context(), a.stand, "--grace", "0s")
	if err != nil || holds || !strings.Contains(text, want.Kind) || !strings.Contains(text, tenant) {
		a.Errorf("the report for people gives %v, no breaks: %t\n%s", err, holds, text)
	}
	tidy()
	if c.rows > 0 { // they reach no cell and no archive, and are kept for people to look at
		takeDeadLetters(a.T, a.stand, "publisher", a.stand.Region(), a.stand.ControlTable("kept"), c.rows,
			func(i *delivery.DeadLetter) bool { return i.Key == tenant })
		a.rejected(c.rows, tenant)
	}
}

// rejected waits until the archive has n records with the prefix that could not be archived, and removes them.
func (a *trail) rejected(n int, prefix string) {
	a.Helper()
	found := map[string]entry{}
	waitFor(a.T, func(context.Context) error {
		for _, e := range a.list(audit.RejectedPrefix) {
			var r audit.Rejected
			if err := json.Unmarshal(a.get(e), &r); err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
			if strings.HasPrefix(r.Key, prefix) {
				if r.Reason != audit.Unreadable || r.Error == "" || len(r.Raw) == 0 {
					a.Errorf("%s: %+v", e.name, r)
				}
				found[e.name] = e
			}
		}
		if len(found) != n {
			return fmt.Errorf("%d records of %s were rejected, want %d", len(found), prefix, n)
		}
		return nil
	})
	for _, e := range found {
		a.remove(e)
	}
}
