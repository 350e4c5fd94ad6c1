// Package bucket implements the archive of the audit trail in an S3 bucket with Object Lock.
//
// An object is written with If-None-Match: * (except by Cover) and with its SHA-256, which S3 compares with the
// content that arrived. S3 locks it with the bucket's default retention, so that no writer chooses how long a lock
// lasts. The bucket is versioned, as Object Lock requires: a deletion hides an object behind a marker, another write
// to the same name adds a version, and both appear in the list of versions. Until its retention ends nobody can remove
// a version, except, in GOVERNANCE mode, users who may bypass it.
//
// Rights to write: s3:PutObject, s3:GetObject. Rights to verify: s3:ListBucketVersions, s3:GetObjectVersion,
// s3:GetObjectRetention (without it S3 does not return locks), s3:GetBucketObjectLockConfiguration.
package bucket

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/sluicelimits/sluice/internal/aws/awsenv"
	"github.com/sluicelimits/sluice/internal/control/audit"
)

var _ audit.Archive = (*Archive)(nil)

// client is the part of *s3.Client that this package uses. Its retries are safe, since an object is made once.
type client interface {
	PutObject(context.Context, *s3.PutObjectInput, ...func(*s3.Options)) (*s3.PutObjectOutput, error)
	GetObject(context.Context, *s3.GetObjectInput, ...func(*s3.Options)) (*s3.GetObjectOutput, error)
	HeadObject(context.Context, *s3.HeadObjectInput, ...func(*s3.Options)) (*s3.HeadObjectOutput, error)
	ListObjectVersions(context.Context, *s3.ListObjectVersionsInput,
		...func(*s3.Options)) (*s3.ListObjectVersionsOutput, error)
	GetObjectLockConfiguration(context.Context, *s3.GetObjectLockConfigurationInput,
		...func(*s3.Options)) (*s3.GetObjectLockConfigurationOutput, error)
}

// NewClient makes the S3 client of a function. It makes no calls.
func NewClient(env *awsenv.Env) *s3.Client {
	return s3.NewFromConfig(env.Config(""), func(o *s3.Options) {
		o.BaseEndpoint = env.Endpoint("S3")
		o.EndpointOptions.UseFIPSEndpoint = env.FIPS()
		o.EndpointOptions.UseDualStackEndpoint = env.DualStack()
		o.UsePathStyle = o.BaseEndpoint != nil // a local substitute for S3 has no host name for each bucket
	})
}

// Archive is a bucket. It is safe for concurrent use.
type Archive struct {
	client client // a *s3.Client
	bucket string
}

// New makes an archive. It makes no calls.
func New(c client, bucket string) *Archive { return &Archive{c, bucket} }

const (
	putTries    = 6                     // of a write that conflicts with others of the same name
	firstPause  = 20 * time.Millisecond // before the second try; it doubles each time, and half of it is random
	mostPerPage = 1000
)

// Put implements [audit.Archive].
func (a *Archive) Put(ctx context.Context, name string, data []byte) (made bool, err error) {
	if err := audit.CheckPut(name, data); err != nil {
		return false, err
	}
	pause := firstPause
	for try := 1; ; try++ {
		err = a.put(ctx, name, data, aws.String("*"))
		switch status(err) {
		case 0:
			if err == nil {
				return true, nil
			}
		case http.StatusPreconditionFailed: // the object exists, perhaps from an earlier try of this call
			if err = a.compare(ctx, name, data); err == nil || errors.Is(err, audit.ErrUnequal) {
				return false, err
			}
			if !errors.Is(err, audit.ErrNotFound) { // not removed or hidden in between
				return false, fmt.Errorf("put %s: %w", name, err)
			}
		case http.StatusConflict: // the same name is being written or removed at this moment
		default:
			return false, fmt.Errorf("put %s: %w", name, err)
		}
		if try == putTries || status(err) == 0 && !errors.Is(err, audit.ErrNotFound) {
			return false, fmt.Errorf("put %s: %w", name, err)
		}
		if err := wait(ctx, pause/2+rand.N(pause/2)); err != nil {
			return false, fmt.Errorf("put %s: %w", name, err)
		}
		pause *= 2
	}
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// put puts a version. unless is nil, or "*" to fail if the name has a version.
func (a *Archive) put(ctx context.Context, name string, data []byte, unless *string) error {
	sum := sha256.Sum256(data)
	_, err := a.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &a.bucket, Key: &name, Body: bytes.NewReader(data), ContentType: aws.String("application/json"),
		IfNoneMatch: unless, ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
		ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(sum[:])),
	})
	return err
}

// Cover implements [audit.Archive]: S3 adds a version and keeps the earlier ones.
func (a *Archive) Cover(ctx context.Context, name string, data []byte) error {
	err := audit.CheckPut(name, data)
	if err == nil {
		err = a.put(ctx, name, data, nil)
	}
	if err != nil {
		return fmt.Errorf("put a version over %s: %w", name, err)
	}
	return nil
}

// compare returns nil if and only if the newest version of the name has this content. The error wraps ErrUnequal if the
// version has another content, and ErrUnreadable if it cannot be read: in both cases a Put can never succeed.
func (a *Archive) compare(ctx context.Context, name string, data []byte) error {
	o, err := a.Get(ctx, audit.Entry{Name: name})
	if errors.Is(err, audit.ErrTooLarge) || err == nil && !bytes.Equal(o.Data, data) {
		return fmt.Errorf("put %s: %w", name, audit.ErrUnequal)
	}
	return err
}

// status returns the HTTP status of S3's answer; 0 if there was none.
func status(err error) int {
	var r *awshttp.ResponseError
	if errors.As(err, &r) {
		return r.HTTPStatusCode()
	}
	return 0
}

// Get implements [audit.Archive]. For an entry without a version it reads the newest one.
func (a *Archive) Get(ctx context.Context, e audit.Entry) (audit.Object, error) {
	in := &s3.GetObjectInput{Bucket: &a.bucket, Key: &e.Name, ChecksumMode: types.ChecksumModeEnabled}
	if e.Version != "" {
		in.VersionId = &e.Version
	}
	out, err := a.client.GetObject(ctx, in)
	if status(err) == http.StatusNotFound && code(err) != "NoSuchBucket" {
		err = fmt.Errorf("%w: %w", audit.ErrNotFound, err)
	}
	if why := a.unreadable(ctx, in, err); why != "" {
		err = fmt.Errorf("%w: %s: %w", audit.ErrUnreadable, why, err)
	}
	if err != nil {
		return audit.Object{}, fmt.Errorf("get %.200q: %w", e.Name, err)
	}
	data, err := io.ReadAll(io.LimitReader(out.Body, audit.MaxBytes+1))
	if closed := out.Body.Close(); err == nil && len(data) <= audit.MaxBytes {
		err = closed
	}
	if err == nil && len(data) > audit.MaxBytes {
		err = fmt.Errorf("%w: more than %d bytes", audit.ErrTooLarge, audit.MaxBytes)
	}
	if err != nil {
		return audit.Object{}, fmt.Errorf("get %.200q: %w", e.Name, err)
	}
	return audit.Object{
		Data: data, Locked: out.ObjectLockMode != "", LockMode: string(out.ObjectLockMode),
		LockedUntil: aws.ToTime(out.ObjectLockRetainUntilDate),
	}, nil
}

// unreadable returns why no reader of the archive can read this object, if the error of GetObject means that;
// otherwise "". In doubt it returns "", so that the call is repeated: if S3 does not answer, or this reader lacks a
// right, it must not look as if somebody had made the object unreadable.
func (a *Archive) unreadable(ctx context.Context, in *s3.GetObjectInput, err error) string {
	switch code(err) {
	case "InvalidObjectState":
		return "its storage class requires a restore first"
	case "InvalidRequest": // S3 uses this code for several errors; the text distinguishes them
		var api smithy.APIError
		if errors.As(err, &api) && strings.Contains(strings.ToLower(api.ErrorMessage()), "server side encryption") {
			return "its writer encrypted it with a key that only the writer has"
		}
	case "KMS.DisabledException", "KMS.NotFoundException", "KMS.KMSInvalidStateException", "KMS.InvalidStateException":
		return "its KMS key cannot decrypt"
	case "AccessDenied":
		// Either S3 denies the object, or KMS its key. HeadObject needs the same right as GetObject, but no KMS key.
		out, err := a.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: in.Bucket, Key: in.Key,
			VersionId: in.VersionId})
		kms := []types.ServerSideEncryption{types.ServerSideEncryptionAwsKms, types.ServerSideEncryptionAwsKmsDsse}
		if err == nil && slices.Contains(kms, out.ServerSideEncryption) {
			return "its KMS key is not the archive's key"
		}
	}
	return ""
}

func code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// List implements [audit.Archive], page by page.
func (a *Archive) List(ctx context.Context, prefix, after string) iter.Seq2[audit.Entry, error] {
	return func(yield func(audit.Entry, error) bool) {
		in := &s3.ListObjectVersionsInput{Bucket: &a.bucket, Prefix: &prefix, MaxKeys: aws.Int32(mostPerPage),
			EncodingType: types.EncodingTypeUrl}
		if after != "" {
			in.KeyMarker = &after
		}
		for {
			out, err := a.client.ListObjectVersions(ctx, in)
			var page []audit.Entry
			if err == nil {
				page, err = entries(out)
			}
			if err != nil {
				yield(audit.Entry{}, fmt.Errorf("list %s: %w", prefix, err))
				return
			}
			for _, e := range page {
				if !yield(e, nil) {
					return
				}
			}
			if !aws.ToBool(out.IsTruncated) {
				return
			}
			marker, err := url.QueryUnescape(aws.ToString(out.NextKeyMarker))
			if err != nil || marker == "" {
				yield(audit.Entry{}, fmt.Errorf("list %s: a page that is not the last names %.200q as the next key",
					prefix,
					aws.ToString(out.NextKeyMarker)))
				return
			}
			in.KeyMarker, in.VersionIdMarker = &marker, out.NextVersionIdMarker
		}
	}
}

// entries returns a page in the order of names. S3 returns versions and markers in separate lists, each with the
// newest first within a name.
func entries(out *s3.ListObjectVersionsOutput) ([]audit.Entry, error) {
	page := make([]audit.Entry, 0, len(out.Versions)+len(out.DeleteMarkers))
	versions, markers := out.Versions, out.DeleteMarkers
	for len(versions)+len(markers) > 0 {
		var v audit.Entry
		var d audit.Entry
		var err, failed error
		if len(versions) > 0 {
			v, err = entry(versions[0].Key, versions[0].VersionId, versions[0].LastModified)
			v.SizeBytes = aws.ToInt64(versions[0].Size)
		}
		if len(markers) > 0 {
			d, failed = entry(markers[0].Key, markers[0].VersionId, markers[0].LastModified)
			d.DeleteMarker = true
		}
		switch {
		case err != nil || failed != nil:
			return nil, errors.Join(err, failed)
		case len(markers) == 0 || len(versions) > 0 && (v.Name < d.Name || v.Name == d.Name && v.PutAt.After(d.PutAt)):
			page, versions = append(page, v), versions[1:]
		default:
			page, markers = append(page, d), markers[1:]
		}
	}
	return page, nil
}

func entry(name, version *string, at *time.Time) (audit.Entry, error) {
	decoded, err := url.QueryUnescape(aws.ToString(name))
	if err != nil {
		return audit.Entry{}, fmt.Errorf("the name %.200q: %w", aws.ToString(name), err)
	}
	return audit.Entry{Name: decoded, Version: aws.ToString(version), PutAt: aws.ToTime(at).UTC()}, nil
}

// Lock implements [audit.Archive]. It returns the bucket's default retention.
func (a *Archive) Lock(ctx context.Context) (audit.Lock, error) {
	out, err := a.client.GetObjectLockConfiguration(ctx, &s3.GetObjectLockConfigurationInput{Bucket: &a.bucket})
	if code(err) == "ObjectLockConfigurationNotFoundError" {
		return audit.Lock{}, nil
	}
	if status(err) == http.StatusForbidden {
		err = fmt.Errorf("%w: %w", audit.ErrDenied, err)
	}
	if err != nil {
		return audit.Lock{}, fmt.Errorf("read the Object Lock configuration of bucket %s: %w", a.bucket, err)
	}
	c := out.ObjectLockConfiguration
	if c == nil || c.ObjectLockEnabled != types.ObjectLockEnabledEnabled {
		return audit.Lock{}, nil
	}
	l := audit.Lock{Enabled: true}
	if c.Rule != nil && c.Rule.DefaultRetention != nil {
		r := c.Rule.DefaultRetention // in days or in years; a year has at least 365 days
		l.Mode = string(r.Mode)
		l.Period = time.Duration(aws.ToInt32(r.Days)+365*aws.ToInt32(r.Years)) * 24 * time.Hour
	}
	return l, nil
}
