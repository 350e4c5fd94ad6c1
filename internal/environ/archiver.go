package environ

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Archiver are the settings of the archiver.
type Archiver struct {
	Common
	AuditBucket
	Tables     ControlTables // by name
	Operations string        // the table of operations, by name
}

// AuditBucket are the settings of what writes into the archive of the audit trail.
type AuditBucket struct {
	Bucket    string
	Mode      string // GOVERNANCE or COMPLIANCE
	Retention time.Duration
}

// Anchor are the settings of the function that makes the audit trail's anchors.
type Anchor struct {
	Common
	AuditBucket
	Tables     ControlTables
	Operations string // the table of operations
	Key        string // of KMS, by ARN
}

// ParseAnchor reads the anchor function's settings, as Parse does.
func ParseAnchor(environ []string) (*Anchor, error) {
	s := &Anchor{}
	return parse("anchor function", environ, s, s.variables())
}

func (s *Anchor) variables() []variable {
	return append(append([]variable{
		table("PLANS", &s.Tables.Plans, tableName), table("TENANTS", &s.Tables.Tenants, tableName), table("KEYS",
			&s.Tables.Keys, tableName),
		table("CELLS", &s.Tables.Cells, tableName), table("OPERATIONS", &s.Operations, tableName),
		{"SLUICE_ANCHOR_KEY", "", true, "ARN of the key in KMS that signs anchors: ECC_NIST_P256, SIGN_VERIFY.",
			func(v string) string {
				const want = "is to be the ARN of a key in KMS"
				if !strings.HasPrefix(v, "arn:") || !strings.Contains(v, ":key/") {
					return want
				}
				return match(&s.Key, v, topicARN, "the ARN of a key in KMS")
			}},
	}, s.AuditBucket.variables()...), s.common()...)
}

const (
	day              = 24 * time.Hour
	maxRetentionDays = 36500 // what S3 takes
)

var bucketName = shape{".-", 3, 63}

// ParseArchiver reads the archiver's settings, as Parse does.
func ParseArchiver(environ []string) (*Archiver, error) {
	s := &Archiver{}
	return parse("archiver", environ, s, s.variables())
}

func (s *Archiver) variables() []variable {
	return append(append([]variable{
		table("PLANS", &s.Tables.Plans, nameAlone), table("TENANTS", &s.Tables.Tenants, nameAlone), table("KEYS", &s.Tables.Keys, nameAlone),
		table("CELLS", &s.Tables.Cells, nameAlone), table("OPERATIONS", &s.Operations, nameAlone),
	}, s.AuditBucket.variables()...), s.common()...)
}

func (s *AuditBucket) variables() []variable {
	return []variable{
		{"SLUICE_AUDIT_BUCKET", "", true, "The bucket with Object Lock in which each version is kept.",
			func(v string) string { return match(&s.Bucket, v, bucketName, "a bucket's name") }},
		{"SLUICE_RETENTION_MODE", "GOVERNANCE", false,
			"`GOVERNANCE`: those with s3:BypassGovernanceRetention may remove records; `COMPLIANCE`: nobody may, and nobody can take that back.",
			func(v string) string {
				if !slices.Contains([]string{"GOVERNANCE", "COMPLIANCE"}, v) {
					return "is to be GOVERNANCE or COMPLIANCE"
				}
				s.Mode = v
				return ""
			}},
		{"SLUICE_RETENTION_DAYS", "365", false, "How long a record is locked from its write on, 1 to 36500.", func(v string) string {
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 || n > maxRetentionDays {
				return "is to be a number of days, 1 to 36500"
			}
			s.Retention = time.Duration(n) * day
			return ""
		}},
	}
}
