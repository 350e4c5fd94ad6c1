package s3test_test

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/sluicelimits/sluice/internal/testkit/s3test"
)

func errorCode(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// Guarantees that wrong writes are refused with S3's codes, and leave nothing: a stand-in that takes them would hide
// mistakes.
func TestRefusals(t *testing.T) {
	hour := aws.Time(time.Now().Add(time.Hour))
	for name, tt := range map[string]struct {
		lock bool
		in   s3.PutObjectInput
		want string
	}{
		"a lock without a mode": {true, s3.PutObjectInput{ObjectLockRetainUntilDate: hour}, "InvalidArgument"},
		"a mode for no time": {true, s3.PutObjectInput{ObjectLockMode: types.ObjectLockModeCompliance},
			"InvalidArgument"},
		"a mode that is none": {true, s3.PutObjectInput{ObjectLockMode: "WEAK",
			ObjectLockRetainUntilDate: hour}, "InvalidArgument"},
		"a lock that has ended": {true, s3.PutObjectInput{ObjectLockMode: types.ObjectLockModeCompliance,
			ObjectLockRetainUntilDate: aws.Time(time.Unix(0, 0))}, "InvalidArgument"},
		"a bucket without locks": {false, s3.PutObjectInput{ObjectLockMode: types.ObjectLockModeCompliance,
			ObjectLockRetainUntilDate: hour}, "InvalidRequest"},
		"a checksum of something else": {true,
			s3.PutObjectInput{ChecksumSHA256: aws.String("47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=")}, "BadDigest"},
		"a condition that is not a star": {true, s3.PutObjectInput{IfNoneMatch: aws.String(`"etag"`)},
			"NotImplemented"},
	} {
		b := s3test.New(t, s3test.Config{Lock: tt.lock})
		tt.in.Bucket, tt.in.Key, tt.in.Body = aws.String(s3test.Name), aws.String("k"), strings.NewReader("x")
		if tt.in.ChecksumSHA256 == nil {
			sum := sha256.Sum256([]byte("x"))
			tt.in.ChecksumSHA256 = aws.String(base64.StdEncoding.EncodeToString(sum[:]))
		}
		_, err := b.Client(func(o *s3.Options) { o.RetryMaxAttempts = 1 }).PutObject(t.Context(), &tt.in)
		if errorCode(err) != tt.want || len(b.Names()) != 0 {
			t.Errorf("%s: %v, want %s; there are %v", name, err, tt.want, b.Names())
		}
	}
}

// Guarantees that an object without a lock of its own has the bucket's, from the time at which it was put; and that one
// of its own, though shorter, is taken, as S3 takes it from whoever has s3:PutObjectRetention.
func TestDefaultRetention(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	b := s3test.New(t, s3test.Config{Lock: true, Mode: "COMPLIANCE", Days: 2, Now: func() time.Time { return now }})
	sum := sha256.Sum256([]byte("x"))
	own := now.Add(time.Hour)
	for name, in := range map[string]*s3.PutObjectInput{
		"default": {},
		"own":     {ObjectLockMode: types.ObjectLockModeGovernance, ObjectLockRetainUntilDate: &own},
	} {
		in.Bucket, in.Key, in.Body = aws.String(s3test.Name), &name, strings.NewReader("x")
		in.ChecksumSHA256 = aws.String(base64.StdEncoding.EncodeToString(sum[:]))
		if _, err := b.Client().PutObject(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		mode, until := types.ObjectLockModeCompliance, now.AddDate(0, 0, 2)
		if name == "own" {
			mode, until = types.ObjectLockModeGovernance, own
		}
		o, err := b.Client().GetObject(t.Context(), &s3.GetObjectInput{Bucket: in.Bucket, Key: in.Key})
		if err != nil || o.ObjectLockMode != mode || !aws.ToTime(o.ObjectLockRetainUntilDate).Equal(until) {
			t.Errorf("%s: %s until %v, %v; want %s until %v", name, o.ObjectLockMode, o.ObjectLockRetainUntilDate, err,
				mode, until)
		}
	}
}

// Guarantees what S3 says of marks: a name under one is not there, the mark itself has no content, and a removed mark
// shows the object again.
func TestDeleteMarkers(t *testing.T) {
	b := s3test.New(t, s3test.Config{})
	b.Overwrite("k", []byte("x"))
	c := b.Client()
	name, k := aws.String(s3test.Name), aws.String("k")
	out, err := c.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: name, Key: k})
	if err != nil || !aws.ToBool(out.DeleteMarker) {
		t.Fatalf("%+v, %v", out, err)
	}
	if _, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: name, Key: k}); errorCode(err) != "NoSuchKey" {
		t.Errorf("a hidden object: %v", err)
	}
	if _, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: name, Key: k,
		VersionId: out.VersionId}); errorCode(err) != "MethodNotAllowed" {
		t.Errorf("a mark: %v", err)
	}
	if _, err := c.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: name, Key: k,
		VersionId: out.VersionId}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: name, Key: k}); err != nil {
		t.Errorf("an object whose mark was removed: %v", err)
	}
	_, err = c.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: name})
	if errorCode(err) != "NotImplemented" {
		t.Errorf("what the stand-in does not know: %v", err)
	}
}
