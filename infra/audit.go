package infra

import (
	"slices"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awscloudtrail"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awskms"
	"github.com/aws/aws-cdk-go/awscdk/v2/awss3"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/config"
)

// audit makes the bucket of the audit trail. The archiver locks each record when it writes it. An object that is
// written without a lock of its own gets the bucket's default lock.
func (c *ControlPlane) audit(p *place) {
	a := &p.deployment.Control.Audit
	c.Audit = newLockedBucket(c, a, "Audit", p.names.AuditBucket(p.region()), &awss3.BucketProps{})
	if a.Mode == config.Governance {
		awscdk.Annotations_Of(c.Construct).AddWarningV2(jsii.String("sluice:governance"), jsii.String(
			"The audit trail is locked in the mode GOVERNANCE: whoever has s3:BypassGovernanceRetention and may "+
				"change "+"the bucket's policy can remove records. See docs/audit.md for the mode COMPLIANCE, which "+
				"nobody "+"can undo."))
	}
	if !a.Anchors {
		awscdk.Annotations_Of(c.Construct).AddWarningV2(jsii.String("sluice:anchors"), jsii.String(
			"The audit trail has no anchors: whoever can write both the control tables and the trail's bucket can "+
				"rewrite the history unnoticed. Set control.audit.anchors, which costs 1.50 USD a month."))
	}
}

// newLockedBucket makes a bucket with Object Lock in the deployment's mode. Only the break-glass role may remove
// objects before their retention ends, and only in the mode GOVERNANCE. Nobody else may choose the lock of an object: a
// writer could otherwise choose a lock that is shorter than the bucket's, or write and hide objects as replicas. The
// bucket's policy can be changed, but CloudTrail records that.
func newLockedBucket(c *ControlPlane, a *config.Audit, id, name string, props *awss3.BucketProps) awss3.Bucket {
	days := awscdk.Duration_Days(jsii.Number(a.RetentionDays))
	lock := awss3.ObjectLockRetention_Governance(days)
	if a.Mode == config.Compliance {
		lock = awss3.ObjectLockRetention_Compliance(days)
	}
	props.ObjectLockEnabled, props.ObjectLockDefaultRetention, props.Versioned = jsii.Bool(true), lock, jsii.Bool(true)
	bucket := newBucket(c, id, name, props)
	all := []string{*bucket.BucketArn(), *bucket.ArnForObjects(jsii.String("*"))}
	bucket.AddToResourcePolicy(deny("NobodyRemoves", principals(a.BreakGlass), []string{
		"s3:BypassGovernanceRetention", "s3:DeleteObject", "s3:DeleteObjectVersion",
		"s3:PutBucketObjectLockConfiguration",
		"s3:PutBucketVersioning", "s3:PutLifecycleConfiguration",
	}, all...))
	bucket.AddToResourcePolicy(deny("NobodyWritesAround", principals(a.BreakGlass), []string{
		"s3:PutObjectRetention", "s3:PutReplicationConfiguration", "s3:ReplicateDelete", "s3:ReplicateObject",
	}, all...))
	return bucket
}

// principals returns the ARNs that are not empty.
func principals(arns ...string) []string {
	return slices.DeleteFunc(arns, func(arn string) bool { return arn == "" })
}

// deny returns a statement that denies actions to everybody except some roles.
func deny(sid string, but, actions []string, resources ...string) awsiam.PolicyStatement {
	props := &awsiam.PolicyStatementProps{
		Sid: &sid, Effect: awsiam.Effect_DENY, Principals: &[]awsiam.IPrincipal{awsiam.NewAnyPrincipal()},
		Actions: jsii.Strings(actions...), Resources: jsii.Strings(resources...),
	}
	if len(but) > 0 {
		props.Conditions = &map[string]any{"ArnNotEquals": map[string]any{"aws:PrincipalArn": but}}
	}
	return awsiam.NewPolicyStatement(props)
}

// restrictTrailWriters lets only the archiver, the anchor function and the break-glass role write into the bucket of
// the audit trail, and each of the two functions only under its own prefixes.
func (c *ControlPlane) restrictTrailWriters(p *place) {
	glass, put := p.deployment.Control.Audit.BreakGlass, []string{"s3:PutObject"}
	under := func(prefix string) string { return *c.Audit.ArnForObjects(jsii.String(prefix + "*")) }
	archiver, signer := c.role(config.Archiver), c.role(config.Anchor)
	c.Audit.AddToResourcePolicy(deny("OnlyTheTrailsFunctionsWrite", principals(archiver, signer, glass), put,
		under("")))
	if signer != "" {
		c.Audit.AddToResourcePolicy(deny("OnlyTheArchiverWrites", principals(archiver, glass), put, under("audit/"),
			under("rejected/")))
		c.Audit.AddToResourcePolicy(deny("OnlyTheAnchorFunctionAnchors", principals(signer, glass), put,
			under("anchors/")))
	}
	c.denyUnreadableObjects(under(""), principals(glass))
}

// denyUnreadableObjects denies everybody except some roles to put objects that readers of the audit trail cannot read:
// objects in a storage class from which they must be restored first, and objects that are encrypted with a customer's
// or a KMS key. Requests that name neither a class nor a key get the bucket's defaults, and the functions' requests
// name neither. CloudTrail's bucket needs no such policy, because only CloudTrail may put objects there.
func (c *ControlPlane) denyUnreadableObjects(objects string, but []string) {
	const customerKey = "s3:x-amz-server-side-encryption-customer-algorithm"
	// as a condition Null: the key is present
	present := func(key string) map[string]any { return map[string]any{key: "false"} }
	only := func(sid, key, value string) {
		s := deny(sid, but, []string{"s3:PutObject"}, objects)
		s.AddCondition(jsii.String("Null"), present(key))
		s.AddCondition(jsii.String("StringNotEquals"), map[string]any{key: value})
		c.Audit.AddToResourcePolicy(s)
	}
	only("OnlyTheUsualStorage", "s3:x-amz-storage-class", "STANDARD")
	only("OnlyTheBucketsKey", "s3:x-amz-server-side-encryption", "AES256")
	own := deny("NoKeyOfTheWriter", but, []string{"s3:PutObject"}, objects)
	own.AddCondition(jsii.String("Null"), present(customerKey))
	c.Audit.AddToResourcePolicy(own)
}

// role returns the ARN of a function's role, or "" if the deployment has no such function.
func (c *ControlPlane) role(function string) string {
	if f := c.Functions[function]; f != nil {
		return *f.Role().RoleArn()
	}
	return ""
}

// administration lists what the account's administrators may do with the anchor key: everything except signing with it
// and granting that to others.
var administration = []string{
	"kms:CancelKeyDeletion", "kms:CreateAlias", "kms:DeleteAlias", "kms:DescribeKey", "kms:DisableKey",
	"kms:EnableKey", "kms:GetKeyPolicy",
	"kms:GetKeyRotationStatus", "kms:GetPublicKey", "kms:ListAliases", "kms:ListGrants", "kms:ListKeyPolicies",
	"kms:ListResourceTags",
	"kms:PutKeyPolicy", "kms:RevokeGrant", "kms:ScheduleKeyDeletion", "kms:TagResource", "kms:UntagResource",
	"kms:UpdateAlias",
	"kms:UpdateKeyDescription", "kms:Verify",
}

// newAnchorKey makes the key that signs anchors. Deleting the stack keeps the key, because the anchors that it signed
// stay, too.
func newAnchorKey(scope constructs.Construct, p *place) awskms.Key {
	return awskms.NewKey(scope, jsii.String("AnchorKey"), &awskms.KeyProps{
		Description: jsii.String("Sluice: signs the anchors of the audit trail in " + p.names.AuditBucket(p.region())),
		KeySpec:     awskms.KeySpec_ECC_NIST_P256, KeyUsage: awskms.KeyUsage_SIGN_VERIFY, RemovalPolicy: keep,
		Policy: awsiam.NewPolicyDocument(&awsiam.PolicyDocumentProps{Statements: &[]awsiam.PolicyStatement{
			awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
				Sid: jsii.String("Administration"), Principals: &[]awsiam.IPrincipal{awsiam.NewAccountRootPrincipal()},
				// in a key's policy, "*" is this key
				Actions: jsii.Strings(administration...), Resources: jsii.Strings("*"),
			}),
		}}),
	})
}

// restrictSigning lets the anchor function's role sign with the anchor key, and denies it to everybody else, whatever
// other policies allow.
func (c *ControlPlane) restrictSigning() {
	signer := c.role(config.Anchor)
	if signer == "" {
		return
	}
	c.AnchorKey.AddToResourcePolicy(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Sid: jsii.String("TheAnchorFunctionSigns"), Principals: &[]awsiam.IPrincipal{awsiam.NewArnPrincipal(&signer)},
		Actions: jsii.Strings("kms:Sign"), Resources: jsii.Strings("*"),
	}), nil)
	c.AnchorKey.AddToResourcePolicy(deny("NobodyElseSigns", []string{signer}, []string{"kms:Sign", "kms:CreateGrant"},
		"*"), nil)
}

// newBucket makes a bucket that is not public, accepts requests by TLS only, and has no ACLs.
func newBucket(c *ControlPlane, id, name string, props *awss3.BucketProps) awss3.Bucket {
	props.BucketName = &name
	props.BlockPublicAccess = awss3.BlockPublicAccess_BLOCK_ALL()
	props.Encryption = awss3.BucketEncryption_S3_MANAGED
	props.EnforceSSL = jsii.Bool(true)
	props.MinimumTLSVersion = jsii.Number(1.2)
	props.ObjectOwnership = awss3.ObjectOwnership_BUCKET_OWNER_ENFORCED
	props.RemovalPolicy = keep
	return awss3.NewBucket(c.Construct, &id, props)
}

const (
	trailDays  = 365 // the shortest retention of CloudTrail's records, in days
	cloudTrail = "cloudtrail.amazonaws.com"
)

// trail makes a CloudTrail trail that records every way around the audit trail. Its bucket is locked like the audit
// trail's. It records:
//
//   - writes to the control tables and to the cells' config tables, and writes and deletions of audit records and their
//     locks
//   - calls of the operators' functions, through their APIs or directly
//   - changes of any resource (management events): the kill switch, secrets, the functions' code and variables, roles
//     and policies, keys, this trail
//
// Writes to counters are left out: the record of a decision would cost more than the decision. Reads are left out, too,
// even of the secret, because CloudTrail cannot select the reads of a single service.
func (c *ControlPlane) trail(p *place) {
	name := p.name(config.Trail)
	arn := p.names.ARN("cloudtrail", p.region(), "trail/"+name)
	audit := &p.deployment.Control.Audit
	// versions under a delete marker stay as long
	days := awscdk.Duration_Days(jsii.Number(max(trailDays, audit.RetentionDays)))
	bucket := newLockedBucket(c, audit, "TrailRecords", p.names.TrailBucket(p.region()), &awss3.BucketProps{
		LifecycleRules: &[]*awss3.LifecycleRule{{Expiration: days, NoncurrentVersionExpiration: days}},
	})
	service := &[]awsiam.IPrincipal{awsiam.NewServicePrincipal(jsii.String(cloudTrail), nil)}
	bucket.AddToResourcePolicy(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Sid: jsii.String("TrailLooks"), Principals: service, Actions: jsii.Strings("s3:GetBucketAcl"),
		Resources:  &[]*string{bucket.BucketArn()},
		Conditions: &map[string]any{"StringEquals": map[string]any{"aws:SourceArn": arn}},
	}))
	bucket.AddToResourcePolicy(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Sid: jsii.String("TrailWrites"), Principals: service, Actions: jsii.Strings("s3:PutObject"),
		Resources: &[]*string{bucket.ArnForObjects(jsii.String("AWSLogs/" + p.names.Account + "/*"))},
		Conditions: &map[string]any{"StringEquals": map[string]any{"aws:SourceArn": arn,
			"s3:x-amz-acl": "bucket-owner-full-control"}},
	}))
	restrictToCloudTrail(bucket, arn, principals(audit.BreakGlass))
	var tables, functions []string
	for _, t := range config.ControlTables() {
		tables = append(tables, p.names.ControlTableARN(p.region(), t))
	}
	functions = append(functions, p.names.ControlFunctionARN(p.region(), config.Admin))
	for i := range p.deployment.Cells {
		cell := &p.deployment.Cells[i]
		tables = append(tables, p.names.CellTableARN(cell.Region, cell.ID, config.Config))
		functions = append(functions, p.names.CellFunctionARN(cell.Region, cell.ID, config.Ops))
	}
	made := awscloudtrail.NewCfnTrail(c.Construct, jsii.String("Trail"), &awscloudtrail.CfnTrailProps{
		TrailName: &name, S3BucketName: bucket.BucketName(), IsLogging: jsii.Bool(true),
		IsMultiRegionTrail:      jsii.Bool(true),
		EnableLogFileValidation: jsii.Bool(true), IncludeGlobalServiceEvents: jsii.Bool(true),
		AdvancedEventSelectors: []any{
			selector("Changes of resources", field("eventCategory", "Management"), field("readOnly", "false")),
			selector("Writes to tables", field("eventCategory", "Data"),
				field("resources.type", "AWS::DynamoDB::Table"),
				field("readOnly", "false"), field("resources.ARN", tables...)),
			selector("Writes of audit records", field("eventCategory", "Data"),
				field("resources.type", "AWS::S3::Object"), field("readOnly", "false"),
				objectsOf(p.names.AuditBucket(p.region()), p)),
			// CloudTrail's own writes are left out: recording a write would cause another write.
			selector("Removal of trail records", field("eventCategory", "Data"), field("resources.type",
				"AWS::S3::Object"),
				field("eventName", "DeleteObject", "DeleteObjects", "PutObjectRetention", "PutObjectLegalHold"),
				objectsOf(p.names.TrailBucket(p.region()), p)),
			selector("Calls of the operators' functions", field("eventCategory", "Data"),
				field("resources.type", "AWS::Lambda::Function"),
				field("resources.ARN", functions...)),
		},
	})
	made.Node().AddDependency(bucket.Policy())
}

// restrictToCloudTrail lets only CloudTrail, on behalf of one trail, and some roles put objects into a bucket.
// Otherwise somebody could put another version over a file of the trail, and readers would read that version. A request
// that no AWS service makes has neither of the two condition keys, and is therefore denied.
func restrictToCloudTrail(bucket awss3.Bucket, trail string, but []string) {
	objects, put := *bucket.ArnForObjects(jsii.String("*")), []string{"s3:PutObject"}
	other := deny("OnlyTheTrailWrites", but, put, objects)
	other.AddCondition(jsii.String("ArnNotEquals"), map[string]any{"aws:SourceArn": trail})
	bucket.AddToResourcePolicy(other)
	nobody := deny("OnlyCloudTrailWrites", but, put, objects)
	nobody.AddCondition(jsii.String("StringNotEquals"), map[string]any{"aws:PrincipalServiceName": cloudTrail})
	bucket.AddToResourcePolicy(nobody)
}

func selector(name string, fields ...any) *awscloudtrail.CfnTrail_AdvancedEventSelectorProperty {
	return &awscloudtrail.CfnTrail_AdvancedEventSelectorProperty{Name: &name, FieldSelectors: fields}
}

// objectsOf selects all objects of a bucket.
func objectsOf(bucket string, p *place) any {
	return &awscloudtrail.CfnTrail_AdvancedFieldSelectorProperty{
		Field: jsii.String("resources.ARN"), StartsWith: jsii.Strings(p.names.ARN("s3", "", bucket) + "/"),
	}
}

func field(name string, equals ...string) any {
	return &awscloudtrail.CfnTrail_AdvancedFieldSelectorProperty{Field: &name, EqualTo: jsii.Strings(equals...)}
}
