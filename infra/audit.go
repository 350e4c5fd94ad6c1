package infra

import (
	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awscloudtrail"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awss3"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra/config"
)

// audit makes the bucket of the audit trail. Records are locked as they are written, and what is written without a lock of its own
// has the bucket's.
func (c *ControlPlane) audit(p *place) {
	a := &p.deployment.Control.Audit
	days := awscdk.Duration_Days(jsii.Number(a.RetentionDays))
	lock := awss3.ObjectLockRetention_Governance(days)
	if a.Mode == config.Compliance {
		lock = awss3.ObjectLockRetention_Compliance(days)
	}
	c.Audit = newBucket(c, "Audit", p.names.AuditBucket(p.region()), &awss3.BucketProps{
		ObjectLockEnabled: jsii.Bool(true), ObjectLockDefaultRetention: lock, Versioned: jsii.Bool(true),
	})
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

const trailDays = 365 // for which CloudTrail's records stay

// trail records who writes to the control tables and the cells' config tables, who writes or deletes audit records or their locks, and who
// calls the operators' functions, past the APIs or through them. Counters are left out: each decision would be a record that costs more than
// the decision.
func (c *ControlPlane) trail(p *place) {
	name := p.name(config.Trail)
	arn := p.names.ARN("cloudtrail", p.region(), "trail/"+name)
	bucket := newBucket(c, "TrailRecords", p.names.TrailBucket(p.region()), &awss3.BucketProps{
		Versioned:      jsii.Bool(true),
		LifecycleRules: &[]*awss3.LifecycleRule{{Expiration: awscdk.Duration_Days(jsii.Number(trailDays)), NoncurrentVersionExpiration: awscdk.Duration_Days(jsii.Number(1))}},
	})
	service := &[]awsiam.IPrincipal{awsiam.NewServicePrincipal(jsii.String("cloudtrail.amazonaws.com"), nil)}
	bucket.AddToResourcePolicy(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Sid: jsii.String("TrailLooks"), Principals: service, Actions: jsii.Strings("s3:GetBucketAcl"), Resources: &[]*string{bucket.BucketArn()},
		Conditions: &map[string]any{"StringEquals": map[string]any{"aws:SourceArn": arn}},
	}))
	bucket.AddToResourcePolicy(awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{
		Sid: jsii.String("TrailWrites"), Principals: service, Actions: jsii.Strings("s3:PutObject"),
		Resources:  &[]*string{bucket.ArnForObjects(jsii.String("AWSLogs/" + p.names.Account + "/*"))},
		Conditions: &map[string]any{"StringEquals": map[string]any{"aws:SourceArn": arn, "s3:x-amz-acl": "bucket-owner-full-control"}},
	}))
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
		TrailName: &name, S3BucketName: bucket.BucketName(), IsLogging: jsii.Bool(true), IsMultiRegionTrail: jsii.Bool(true),
		EnableLogFileValidation: jsii.Bool(true), IncludeGlobalServiceEvents: jsii.Bool(true),
		AdvancedEventSelectors: []any{
			selector("Writes to tables", field("eventCategory", "Data"), field("resources.type", "AWS::DynamoDB::Table"),
				field("readOnly", "false"), field("resources.ARN", tables...)),
			selector("Writes of audit records", field("eventCategory", "Data"), field("resources.type", "AWS::S3::Object"), field("readOnly", "false"),
				&awscloudtrail.CfnTrail_AdvancedFieldSelectorProperty{
					Field: jsii.String("resources.ARN"), StartsWith: jsii.Strings(p.names.ARN("s3", "", p.names.AuditBucket(p.region())) + "/"),
				}),
			selector("Calls of the operators' functions", field("eventCategory", "Data"), field("resources.type", "AWS::Lambda::Function"),
				field("resources.ARN", functions...)),
		},
	})
	made.Node().AddDependency(bucket.Policy())
}

func selector(name string, fields ...any) *awscloudtrail.CfnTrail_AdvancedEventSelectorProperty {
	return &awscloudtrail.CfnTrail_AdvancedEventSelectorProperty{Name: &name, FieldSelectors: fields}
}

func field(name string, equals ...string) any {
	return &awscloudtrail.CfnTrail_AdvancedFieldSelectorProperty{Field: &name, EqualTo: jsii.Strings(equals...)}
}
