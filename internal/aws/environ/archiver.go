package environ

import (
	"strings"
)

// Archiver holds the settings of the archiver.
type Archiver struct {
	Common
	Bucket     string        // of the audit trail; the bucket's default retention locks each object
	Tables     ControlTables // by name
	Operations string        // the table of operations, by name
}

// Anchor holds the settings of the function that makes the anchors of the audit trail.
type Anchor struct {
	Common
	Bucket     string // of the audit trail
	Tables     ControlTables
	Operations string // the table of operations
	Key        string // ARN of the KMS key
}

// ParseAnchor reads the anchor function's settings, as Parse does.
func ParseAnchor(environ []string) (*Anchor, error) {
	s := &Anchor{}
	return parse("anchor function", environ, s, s.variables())
}

func (s *Anchor) variables() []variable {
	return append([]variable{
		table("PLANS", &s.Tables.Plans, tableName), table("TENANTS", &s.Tables.Tenants, tableName), table("KEYS",
			&s.Tables.Keys, tableName),
		table("CELLS", &s.Tables.Cells, tableName), table("OPERATIONS", &s.Operations, tableName),
		{"SLUICE_ANCHOR_KEY", "", true, "ARN of the key in KMS that signs anchors: ECC_NIST_P256, SIGN_VERIFY.",
			func(v string) string {
				const want = "must be the ARN of a key in KMS"
				if !strings.HasPrefix(v, "arn:") || !strings.Contains(v, ":key/") {
					return want
				}
				return match(&s.Key, v, topicARN, "the ARN of a key in KMS")
			}},
		auditBucket(&s.Bucket),
	}, s.common()...)
}

var bucketName = shape{".-", 3, 63}

// ParseArchiver reads the archiver's settings, as Parse does.
func ParseArchiver(environ []string) (*Archiver, error) {
	s := &Archiver{}
	return parse("archiver", environ, s, s.variables())
}

func (s *Archiver) variables() []variable {
	return append([]variable{
		table("PLANS", &s.Tables.Plans, nameAlone), table("TENANTS", &s.Tables.Tenants, nameAlone),
		table("KEYS", &s.Tables.Keys, nameAlone),
		table("CELLS", &s.Tables.Cells, nameAlone), table("OPERATIONS", &s.Operations, nameAlone),
		auditBucket(&s.Bucket),
	}, s.common()...)
}

func auditBucket(to *string) variable {
	return variable{"SLUICE_AUDIT_BUCKET", "", true,
		"The bucket with Object Lock in which each version is kept, and whose default retention locks it.",
		func(v string) string { return match(to, v, bucketName, "a bucket's name") }}
}
