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

// audit makes the bucket of the audit trail. Records are locked as they are written, and what is written without a lock
// of its own has the bucket's.
func (c *ControlPlane) audit(p *place) {
	a := &p.deployment.Control.Audit
	c.Audit = newLockedBucket(c, a, "Audit", p.names.AuditBucket(p.region()), &awss3.BucketProps{})
	if a.Mode == config.Governance {
		awscdk.Annotations_Of(c.Construct).AddWarningV2(jsii.String("sluice:governance"), jsii.String(
			"The audit trail is locked in the mode GOVERNANCE: whoever may s3:BypassGovernanceRetention and change "+
				"the bucket's policy can remove records. See docs/audit.md for the mode COMPLIANCE, which nobody "+
				"can take back."))
	}
	if !a.Anchors {
		awscdk.Annotations_Of(c.Construct).AddWarningV2(jsii.String("sluice:anchors"), jsii.String(
			"The audit trail has no anchors: whoever can write the control tables and its bucket can rewrite both "+
				"unnoticed. Set control.audit.anchors, for 1.50 USD a month."))
	}
}

// newLockedBucket makes a bucket with Object Lock in the deployment's mode, whose objects only the break-glass role may
// remove before their retention ends, and only in GOVERNANCE. Nobody else may choose the lock of an object, since a
// writer could choose a shorter one than the bucket's, or write and hide objects as replicas. Its policy can be
// changed: that is an event in the trail.
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

// principals are the ARNs that are not empty.
func principals(arns ...string) []string {
	return slices.DeleteFunc(arns, func(arn string) bool { return arn == "" })
}

// deny is a statement that denies actions to everybody but some roles.
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

// keepOut denies everybody but the functions that keep the audit trail, and the break-glass role, to write into its
// bucket; and of these functions each to write what the other one does.
func (c *ControlPlane) keepOut(p *place) {
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
	c.onlyWhatCanBeRead(under(""), principals(glass))
}

// onlyWhatCanBeRead denies everybody but some roles to put objects that those who read the audit trail cannot read: in
// a class of storage that has to be restored first, under a key that only the writer has, or under a key in KMS. A
// request that says nothing of these, as our functions' requests, gets what the bucket gives. CloudTrail's bucket needs
// none of this: nobody but CloudTrail may put anything there.
func (c *ControlPlane) onlyWhatCanBeRead(objects string, but []string) {
	const customerKey = "s3:x-amz-server-side-encryption-customer-algorithm"
	present := func(key string) map[string]any { return map[string]any{key: "false"} } // of Null: it is not absent
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

// role is the ARN of a function's role; empty where there is no such function.
func (c *ControlPlane) role(function string) string {
	if f := c.Functions[function]; f != nil {
		return *f.Role().RoleArn()
	}
	return ""
}

// administration is what the account's administrators may do with the key of the anchors: all but to sign with it,
// and to let others do so by a grant.
var administration = []string{
	"kms:CancelKeyDeletion", "kms:CreateAlias", "kms:DeleteAlias", "kms:DescribeKey", "kms:DisableKey",
	"kms:EnableKey", "kms:GetKeyPolicy",
	"kms:GetKeyRotationStatus", "kms:GetPublicKey", "kms:ListAliases", "kms:ListGrants", "kms:ListKeyPolicies",
	"kms:ListResourceTags",
	"kms:PutKeyPolicy", "kms:RevokeGrant", "kms:ScheduleKeyDeletion", "kms:TagResource", "kms:UntagResource",
	"kms:UpdateAlias",
	"kms:UpdateKeyDescription", "kms:Verify",
}

// newAnchorKey makes the key that signs anchors. It stays when the stack goes: what it signed does, too.
func newAnchorKey(scope constructs.Construct, p *place) awskms.Key {
	return awskms.NewKey(scope, jsii.String("AnchorKey"), &awskms.KeyProps{
		Description: jsii.String("Sluice: signs the anchors of the audit trail in " + p.names.AuditBucket(p.region())),
		KeySpec:     awskms.KeySpec_ECC_NIST_P256, KeyUsage: awskms.KeyUsage_SIGN_VERIFY, RemovalPolicy: keep,
		Policy: awsiam.NewPolicyDocument(&awsiam.PolicyDocumentProps{Statements: &[]awsiam.PolicyStatement{
			awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
				Sid: jsii.String("Administration"), Principals: &[]awsiam.IPrincipal{awsiam.NewAccountRootPrincipal()},
				Actions: jsii.Strings(administration...), Resources: jsii.Strings("*"), // this key: it is its policy
			}),
		}}),
	})
}

// onlySigner lets the anchor function's role sign with the key of the anchors, and nobody else, whatever other
// policies say.
func (c *ControlPlane) onlySigner() {
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

// newBucket makes a bucket that nobody reaches from outside, in clear, or by an ACL.
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
	trailDays  = 365 // for which CloudTrail's records stay at the least
	cloudTrail = "cloudtrail.amazonaws.com"
)

// trail records, in a bucket that is locked as the audit trail is, what could get around the audit trail:
//
//   - who writes to the control tables and the cells' config tables, and who writes or deletes audit records or their
//     locks;
//   - who calls the operators' functions, past the APIs or through them;
//   - who changes any resource (management events): the kill switch, secrets, the functions' code and variables,
//     roles and policies, keys, this trail.
//
// Counters are left out: each decision would be a record that costs more than the decision. So is who reads, a secret
// for one: CloudTrail cannot select the reads of one service alone.
func (c *ControlPlane) trail(p *place) {
	name := p.name(config.Trail)
	arn := p.names.ARN("cloudtrail", p.region(), "trail/"+name)
	audit := &p.deployment.Control.Audit
	days := awscdk.Duration_Days(jsii.Number(max(trailDays, audit.RetentionDays))) // hidden versions stay as long
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
	onlyCloudTrailWrites(bucket, arn, principals(audit.BreakGlass))
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
			// CloudTrail's own writes are left out: each would be a record, and be written.
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

// onlyCloudTrailWrites denies everybody but CloudTrail, on behalf of one trail, and some roles to put objects into a
// bucket. Otherwise whoever may put objects could cover a file of the trail with another version, and who reads the
// file would read that version. A request that no service makes has neither of the two keys, and is denied.
func onlyCloudTrailWrites(bucket awss3.Bucket, trail string, but []string) {
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

// objectsOf selects the objects of a bucket.
func objectsOf(bucket string, p *place) any {
	return &awscloudtrail.CfnTrail_AdvancedFieldSelectorProperty{
		Field: jsii.String("resources.ARN"), StartsWith: jsii.Strings(p.names.ARN("s3", "", bucket) + "/"),
	}
}

func field(name string, equals ...string) any {
	return &awscloudtrail.CfnTrail_AdvancedFieldSelectorProperty{Field: &name, EqualTo: jsii.Strings(equals...)}
}
