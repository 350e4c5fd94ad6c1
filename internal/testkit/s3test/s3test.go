// Package s3test is a stand-in for one S3 bucket, for tests. Clients use it over HTTP, as they use S3.
//
// It has versions, delete markers, Object Lock, conditional writes, checksums, lists in pages and objects that cannot
// be read. It answers wrong requests with the status and code of S3, and requests that it does not support with 501.
// Its methods are for tampering: they change the bucket in ways in which no request can. Requests are not
// authenticated.
package s3test

import (
	"crypto/md5" //nolint:gosec // S3 defines an ETag as the MD5 of an object
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// Name is the name of the bucket.
const Name = "audit-bucket"

// Fault says what goes wrong with a request: it gets an error, or, if Lost is true, it is carried out without an
// answer.
type Fault struct {
	Status int    // status of the error
	Code   string // code of the error, such as SlowDown, AccessDenied, ConditionalRequestConflict

	Lost bool // the request is carried out, and the connection ends without an answer
}

// Config sets up a bucket. Several goroutines may call Fault and Seen at the same time.
type Config struct {
	Lock     bool             // the bucket has Object Lock
	Mode     string           // mode of the bucket's default retention, which needs Lock; "" if there is none
	Days     int              // length of the default retention, in days
	PageSize int              // most entries in a page of a list of versions; 0 selects 1000
	Now      func() time.Time // default time.Now
	// Fault returns the fault of a request, or nil; if Fault is nil, no request has one.
	Fault func(r *http.Request) *Fault
	Seen  func(method, operation string) // called for each request, as with PUT, object or GET, versions; may be nil
}

// Bucket is the stand-in. It is safe for concurrent use.
type Bucket struct {
	c      Config
	server *httptest.Server

	mu      sync.Mutex
	objects map[string][]version // oldest first
	names   []string             // sorted
	last    int                  // number of the version that was added last
}

type version struct {
	id     string
	marker bool
	data   []byte
	tag    string // ETag of data; it is stored because computing it for each entry of a list would take long
	sum    string // SHA-256 of data in base64; "" if the writer did not send it
	at     time.Time
	mode   string
	until  time.Time
	sealed Seal
}

// Seal says why the content of a version cannot be read; "" if it can be read.
type Seal string

// The ways in which a writer can put an object that its readers cannot read.
const (
	Archived    Seal = "archived"     // it must be restored first from its storage class: GLACIER, DEEP_ARCHIVE
	CustomerKey Seal = "customer key" // the writer encrypted it with a key that only the writer has (SSE-C)
	ForeignKey  Seal = "foreign key"  // the readers may not decrypt with its KMS key
	DisabledKey Seal = "disabled key" // its KMS key is disabled, so nobody can decrypt it
)

// refusal returns the error with which S3 answers a GET, or a HEAD, of such a version; nil if S3 answers the request.
func (s Seal) refusal(head bool) *answer {
	switch {
	case s == CustomerKey:
		return &answer{http.StatusBadRequest, "InvalidRequest", "The object was stored using a form of Server Side " +
			"Encryption. The correct parameters must be provided to retrieve the object."}
	case head:
		return nil
	case s == Archived:
		return refuse(http.StatusForbidden, "InvalidObjectState")
	case s == ForeignKey:
		return refuse(http.StatusForbidden, "AccessDenied")
	case s == DisabledKey:
		return refuse(http.StatusBadRequest, "KMS.DisabledException")
	}
	return nil
}

// cleaner is the part of testing.TB that New uses.
type cleaner interface {
	Helper()
	Cleanup(f func())
}

// New starts a server with an empty bucket. The server ends with the test.
func New(t cleaner, c Config) *Bucket {
	t.Helper()
	if c.PageSize == 0 {
		c.PageSize = 1000
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	b := &Bucket{c: c, objects: make(map[string][]version)}
	b.server = httptest.NewServer(http.HandlerFunc(b.serve))
	t.Cleanup(b.server.Close)
	return b
}

// URL returns the endpoint under which clients find the bucket.
func (b *Bucket) URL() string { return b.server.URL }

// Client returns a client of the SDK for the bucket's endpoint. The options may change its settings.
func (b *Bucket) Client(options ...func(*s3.Options)) *s3.Client {
	return s3.New(s3.Options{
		Region: "eu-west-1", BaseEndpoint: aws.String(b.server.URL), UsePathStyle: true, HTTPClient: b.server.Client(),
		Credentials: credentials.NewStaticCredentialsProvider("local", "local", ""),
	}, options...)
}

// Names returns the names of all objects, including those under a delete marker.
func (b *Bucket) Names() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.names)
}

// Versions returns the contents of all versions of a name, oldest first; nil for a delete marker.
func (b *Bucket) Versions(name string) [][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all [][]byte
	for _, v := range b.objects[name] {
		all = append(all, v.data)
	}
	return all
}

// Erase removes all versions of a name, even if they are locked.
func (b *Bucket) Erase(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.objects, name)
	b.names = slices.DeleteFunc(b.names, func(n string) bool { return n == name })
}

// Alter changes the content of a name's oldest version, without making a new version.
func (b *Bucket) Alter(name string, change func([]byte) []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := &b.objects[name][0]
	v.data, v.sum = change(slices.Clone(v.data)), ""
	v.tag = etag(v.data)
}

// Overwrite adds a version of a name, as every writer can.
func (b *Bucket) Overwrite(name string, data []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(name, b.lock(version{data: data, at: b.c.Now()}))
}

// lock gives a new version the bucket's default retention, unless its writer chose a retention.
func (b *Bucket) lock(v version) version {
	if v.mode == "" && b.c.Mode != "" {
		v.mode, v.until = b.c.Mode, v.at.AddDate(0, 0, b.c.Days)
	}
	return v
}

// Lock changes the retention of a name's oldest version.
func (b *Bucket) Lock(name, mode string, until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := &b.objects[name][0]
	v.mode, v.until = mode, until
}

// Seal makes the content of a name's newest version unreadable.
func (b *Bucket) Seal(name string, how Seal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.objects[name]
	all[len(all)-1].sealed = how
}

// Hide adds a delete marker to a name, as everybody who may delete can.
func (b *Bucket) Hide(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(name, version{marker: true, at: b.c.Now()})
}

// Unlock removes the retention of a name's oldest version.
func (b *Bucket) Unlock(name string) { b.Lock(name, "", time.Time{}) }

func (b *Bucket) add(name string, v version) string {
	b.last++
	v.id = fmt.Sprintf("v%08d", b.last)
	if !v.marker {
		v.tag = etag(v.data)
	}
	if len(b.objects[name]) == 0 {
		at, _ := slices.BinarySearch(b.names, name)
		b.names = slices.Insert(b.names, at, name)
	}
	b.objects[name] = append(b.objects[name], v)
	return v.id
}

// answer is an error of S3: a status, a code, and a message for people.
type answer struct {
	status        int
	code, message string
}

func refuse(status int, code string) *answer { return &answer{status, code, code} }

func (a *answer) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(a.status)
	const form = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" +
		"<Error><Code>%s</Code><Message>%s</Message><RequestId>r</RequestId></Error>"
	fmt.Fprintf(w, form, a.code, a.message) //nolint:gosec // codes come from this package and from tests
}

var notImplemented = refuse(http.StatusNotImplemented, "NotImplemented")

// operation returns the name of the operation of a request, which is in its query, or "bucket" or "object".
func operation(r *http.Request, name string) string {
	q := r.URL.Query()
	for _, sub := range []string{"versions", "object-lock", "acl", "tagging", "uploads", "uploadId", "retention",
		"legal-hold", "list-type"} {
		if q.Has(sub) {
			return sub
		}
	}
	if name == "" {
		return "bucket"
	}
	return "object"
}

func (b *Bucket) serve(w http.ResponseWriter, r *http.Request) {
	bucket, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	op := operation(r, name)
	if b.c.Seen != nil {
		b.c.Seen(r.Method, op)
	}
	var fault *Fault
	if b.c.Fault != nil {
		fault = b.c.Fault(r)
	}
	if fault != nil && !fault.Lost {
		refuse(fault.Status, fault.Code).write(w)
		return
	}
	into := w
	if fault != nil {
		into = httptest.NewRecorder()
	}
	if bucket != Name {
		refuse(http.StatusNotFound, "NoSuchBucket").write(into)
	} else if a := b.handle(into, r, op, name); a != nil {
		a.write(into)
	}
	if fault != nil {
		panic(http.ErrAbortHandler) // ends the connection
	}
}

func (b *Bucket) handle(w http.ResponseWriter, r *http.Request, op, name string) *answer {
	switch {
	case r.Method == http.MethodPut && op == "object":
		return b.put(w, r, name)
	case (r.Method == http.MethodGet || r.Method == http.MethodHead) && op == "object":
		return b.get(w, r, name)
	case r.Method == http.MethodDelete && op == "object":
		return b.remove(w, r, name)
	case r.Method == http.MethodGet && op == "versions" && name == "":
		return b.list(w, r)
	case r.Method == http.MethodGet && op == "object-lock" && name == "":
		if !b.c.Lock {
			return refuse(http.StatusNotFound, "ObjectLockConfigurationNotFoundError")
		}
		rule := ""
		if b.c.Mode != "" {
			rule = fmt.Sprintf("<Rule><DefaultRetention><Mode>%s</Mode><Days>%d</Days></DefaultRetention></Rule>",
				b.c.Mode, b.c.Days)
		}
		fmt.Fprint(w, "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>"+rule+
			"</ObjectLockConfiguration>")
		return nil
	}
	return notImplemented
}

func (b *Bucket) put(w http.ResponseWriter, r *http.Request, name string) *answer {
	v, refused := upload(r)
	if refused != nil {
		return refused
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	v.at = b.c.Now()
	v = b.lock(v)
	match := r.Header.Get("If-None-Match")
	switch {
	case v.mode != "" && !v.until.After(v.at):
		return refuse(http.StatusBadRequest, "InvalidArgument")
	case v.mode != "" && (!b.c.Lock || v.sum == "" && r.Header.Get("Content-Md5") == ""):
		return refuse(http.StatusBadRequest, "InvalidRequest")
	case match != "" && match != "*":
		return notImplemented
	}
	if all := b.objects[name]; match == "*" && len(all) > 0 && !all[len(all)-1].marker {
		return refuse(http.StatusPreconditionFailed, "PreconditionFailed")
	}
	w.Header().Set("X-Amz-Version-Id", b.add(name, v))
	w.Header().Set("Etag", etag(v.data))
	return nil
}

// upload returns the version that a request wants to put.
func upload(r *http.Request) (version, *answer) {
	data, err := io.ReadAll(r.Body)
	if err != nil || strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		// A client sends a body in chunks only if its caller does not give it the checksum.
		return version{}, notImplemented
	}
	v := version{data: data, sum: r.Header.Get("X-Amz-Checksum-Sha256"), mode: r.Header.Get("X-Amz-Object-Lock-Mode")}
	sum := sha256.Sum256(data)
	if v.sum != "" && v.sum != base64.StdEncoding.EncodeToString(sum[:]) {
		return version{}, refuse(http.StatusBadRequest, "BadDigest")
	}
	until := r.Header.Get("X-Amz-Object-Lock-Retain-Until-Date")
	if until != "" {
		v.until, err = time.Parse(time.RFC3339, until)
	}
	if err != nil || (v.mode == "") != (until == "") || v.mode != "" && v.mode != "GOVERNANCE" &&
		v.mode != "COMPLIANCE" {
		return version{}, refuse(http.StatusBadRequest, "InvalidArgument")
	}
	return v, nil
}

func etag(data []byte) string {
	sum := md5.Sum(data) //nolint:gosec // S3 defines an ETag as the MD5 of an object
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

// find returns the index of the version with an id, or of the newest version if the id is "".
func (b *Bucket) find(name, id string) (int, *answer) {
	all := b.objects[name]
	if id == "" {
		if len(all) == 0 || all[len(all)-1].marker {
			return 0, refuse(http.StatusNotFound, "NoSuchKey")
		}
		return len(all) - 1, nil
	}
	i := slices.IndexFunc(all, func(v version) bool { return v.id == id })
	if i < 0 {
		return 0, refuse(http.StatusNotFound, "NoSuchVersion")
	}
	return i, nil
}

func (b *Bucket) get(w http.ResponseWriter, r *http.Request, name string) *answer {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, refused := b.find(name, r.URL.Query().Get("versionId"))
	if refused != nil {
		return refused
	}
	v := b.objects[name][i]
	if v.marker {
		return refuse(http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
	head := r.Method == http.MethodHead
	if refused := v.sealed.refusal(head); refused != nil {
		return refused
	}
	h := w.Header()
	if v.sealed == Archived {
		h.Set("X-Amz-Storage-Class", "GLACIER")
	}
	if v.sealed == ForeignKey || v.sealed == DisabledKey {
		h.Set("X-Amz-Server-Side-Encryption", "aws:kms")
	}
	h.Set("Etag", v.tag)
	h.Set("Content-Length", strconv.Itoa(len(v.data)))
	h.Set("Last-Modified", v.at.UTC().Format(http.TimeFormat))
	h.Set("X-Amz-Version-Id", v.id)
	if v.sum != "" && r.Header.Get("X-Amz-Checksum-Mode") == "ENABLED" {
		h.Set("X-Amz-Checksum-Sha256", v.sum)
	}
	if v.mode != "" {
		h.Set("X-Amz-Object-Lock-Mode", v.mode)
		h.Set("X-Amz-Object-Lock-Retain-Until-Date", v.until.UTC().Format("2006-01-02T15:04:05.000Z"))
	}
	if !head {
		_, _ = w.Write(v.data) // the client may be gone
	}
	return nil
}

// remove adds a delete marker to a name or, if the request names a version, removes this version unless it is locked.
func (b *Bucket) remove(w http.ResponseWriter, r *http.Request, name string) *answer {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := r.URL.Query().Get("versionId")
	if id == "" {
		w.Header().Set("X-Amz-Version-Id", b.add(name, version{marker: true, at: b.c.Now()}))
		w.Header().Set("X-Amz-Delete-Marker", "true")
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	i, refused := b.find(name, id)
	if refused != nil {
		w.WriteHeader(http.StatusNoContent) // S3 also answers so if there is no such version
		return nil
	}
	v := b.objects[name][i]
	bypass := v.mode == "GOVERNANCE" && r.Header.Get("X-Amz-Bypass-Governance-Retention") == "true"
	if v.mode != "" && v.until.After(b.c.Now()) && !bypass {
		return refuse(http.StatusForbidden, "AccessDenied")
	}
	b.objects[name] = slices.Delete(b.objects[name], i, i+1)
	if len(b.objects[name]) == 0 {
		delete(b.objects, name)
		b.names = slices.DeleteFunc(b.names, func(n string) bool { return n == name })
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// listed is one entry of a list of versions: a version or a delete marker.
type listed struct {
	XMLName      xml.Name
	Key          string
	VersionID    string `xml:"VersionId"`
	IsLatest     bool
	LastModified string
	ETag         string `xml:",omitempty"`
	Size         int    `xml:",omitempty"`
	StorageClass string `xml:",omitempty"`
}

// page is one answer to a request for a list. Versions and delete markers are in one list, in the order of S3.
type page struct {
	XMLName             xml.Name `xml:"ListVersionsResult"`
	Name                string
	Prefix              string
	KeyMarker           string
	VersionIDMarker     string `xml:"VersionIdMarker"`
	MaxKeys             int
	EncodingType        string `xml:",omitempty"`
	IsTruncated         bool
	NextKeyMarker       string `xml:",omitempty"`
	NextVersionIDMarker string `xml:"NextVersionIdMarker,omitempty"`
	Entries             []listed
}

func (b *Bucket) list(w http.ResponseWriter, r *http.Request) *answer {
	q := r.URL.Query()
	most := b.c.PageSize
	if text := q.Get("max-keys"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return refuse(http.StatusBadRequest, "InvalidArgument")
		}
		most = min(most, n)
	}
	key, id, prefix := q.Get("key-marker"), q.Get("version-id-marker"), q.Get("prefix")
	if q.Has("delimiter") || q.Get("encoding-type") != "url" {
		return notImplemented
	}
	if id != "" && key == "" {
		return refuse(http.StatusBadRequest, "InvalidArgument")
	}
	encode := func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "%2F", "/") }
	out := page{Name: Name, Prefix: encode(prefix), KeyMarker: encode(key), VersionIDMarker: id, MaxKeys: most,
		EncodingType: "url"}
	b.mu.Lock()
	defer b.mu.Unlock()
	at, _ := slices.BinarySearch(b.names, max(key, prefix))
	for _, name := range b.names[at:] {
		if !strings.HasPrefix(name, prefix) {
			break
		}
		all := b.objects[name]
		passed := name == key && id == "" // a marker without a version comes after all versions of its name
		until := len(all) - 1
		if name == key && id != "" {
			until = slices.IndexFunc(all, func(v version) bool { return v.id == id }) - 1
		}
		for i := until; i >= 0 && !passed; i-- {
			if len(out.Entries) == most {
				out.IsTruncated = true
				last := out.Entries[most-1]
				out.NextKeyMarker, out.NextVersionIDMarker = last.Key, last.VersionID
				return b.write(w, out)
			}
			out.Entries = append(out.Entries, entry(encode(name), all[i], i == len(all)-1))
		}
	}
	return b.write(w, out)
}

func entry(name string, v version, latest bool) listed {
	e := listed{
		XMLName: xml.Name{Local: "Version"}, Key: name, VersionID: v.id, IsLatest: latest,
		LastModified: v.at.UTC().Format("2006-01-02T15:04:05.000Z"),
	}
	if v.marker {
		e.XMLName.Local = "DeleteMarker"
		return e
	}
	e.ETag, e.Size, e.StorageClass = v.tag, len(v.data), "STANDARD"
	return e
}

func (*Bucket) write(w http.ResponseWriter, out page) *answer {
	w.Header().Set("Content-Type", "application/xml")
	if err := xml.NewEncoder(w).Encode(out); err != nil {
		return refuse(http.StatusInternalServerError, "InternalError")
	}
	return nil
}
