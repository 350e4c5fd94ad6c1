package infra_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/jsii-runtime-go"

	"github.com/sluicelimits/sluice/infra"
	"github.com/sluicelimits/sluice/infra/config"
)

// record is an event with the fields by which CloudTrail selects events.
type record map[string]string

func managementEvent(name string) record {
	return record{"eventCategory": "Management", "readOnly": "false", "eventName": name}
}

func dataEvent(kind, name, arn string) record {
	return record{"eventCategory": "Data", "readOnly": "false", "eventName": name, "resources.type": kind,
		"resources.ARN": arn}
}

// selectorOf returns the name of the selector that selects an event, or "" if none does.
func selectorOf(one *template, trail *resource, r record) string {
	for _, s := range list(trail.get("AdvancedEventSelectors")) {
		all := true
		for _, f := range list(get(s, "FieldSelectors")) {
			value := r[fmt.Sprint(get(f, "Field"))]
			begins := func(with string) bool { return strings.HasPrefix(value, with) }
			all = all && (slices.Contains(one.texts(get(f, "Equals")), value) || slices.ContainsFunc(one.texts(get(f,
				"StartsWith")), begins))
		}
		if all {
			return fmt.Sprint(get(s, "Name"))
		}
	}
	return ""
}

// Guarantees that every action that bypasses the audit trail is recorded by CloudTrail, through the selector that is
// named here, and that the actions of each request, and CloudTrail's own writes, are not recorded.
func TestTrailHasWhatGetsAroundTheAuditTrail(t *testing.T) {
	const (
		changes, removal = "Changes of resources", "Removal of trail records"
		table, object    = "AWS::DynamoDB::Table", "AWS::S3::Object"
		lambda           = "AWS::Lambda::Function"
		bucket           = "arn:aws:s3:::sluice-%s-123456789012-eu-west-1/%s"
		one              = "arn:aws:dynamodb:eu-west-1:123456789012:table/sluice-"
		called           = "arn:aws:lambda:eu-west-1:123456789012:function:sluice-"
	)
	all := map[string]struct {
		event record
		by    string
	}{
		"a mode of the kill switch":     {managementEvent("StartDeployment"), changes},
		"a document of the kill switch": {managementEvent("CreateHostedConfigurationVersion"), changes},
		"a value of the secret":         {managementEvent("PutSecretValue"), changes},
		"a function's code":             {managementEvent("UpdateFunctionCode20150331v2"), changes},
		"a function's variables":        {managementEvent("UpdateFunctionConfiguration20150331v2"), changes},
		"who may invoke a function":     {managementEvent("AddPermission20150331v2"), changes},
		"an event source":               {managementEvent("UpdateEventSourceMapping20150331"), changes},
		"a role's policy":               {managementEvent("PutRolePolicy"), changes},
		"a key's policy":                {managementEvent("PutKeyPolicy"), changes},
		"the end of a key":              {managementEvent("ScheduleKeyDeletion"), changes},
		"a bucket's policy":             {managementEvent("PutBucketPolicy"), changes},
		"a bucket's retention":          {managementEvent("PutBucketObjectLockConfiguration"), changes},
		"the end of this trail":         {managementEvent("StopLogging"), changes},
		"other selectors of this trail": {managementEvent("PutEventSelectors"), changes},
		"an integration of an API":      {managementEvent("UpdateIntegration"), changes},
		"a table set back":              {managementEvent("RestoreTableToPointInTime"), changes},
		"a write of a control table":    {dataEvent(table, "PutItem", one+"tenants"), "Writes to tables"},
		"a write of a cell's table":     {dataEvent(table, "PutItem", one+"a-1-config"), "Writes to tables"},
		"a write of an audit record": {dataEvent(object, "PutObject", fmt.Sprintf(bucket, "audit", "audit/x")),
			"Writes of audit records"},
		"a lock of an audit record": {dataEvent(object, "PutObjectRetention", fmt.Sprintf(bucket, "audit", "x")),
			"Writes of audit records"},
		"a trail record removed": {dataEvent(object, "DeleteObject", fmt.Sprintf(bucket, "trail", "AWSLogs/x")),
			removal},
		"trail records removed": {dataEvent(object, "DeleteObjects", fmt.Sprintf(bucket, "trail", "")), removal},
		"a lock of a trail record": {dataEvent(object, "PutObjectRetention", fmt.Sprintf(bucket, "trail", "x")),
			removal},
		"the admin function invoked": {dataEvent(lambda, "Invoke", called+"admin"),
			"Calls of the operators' functions"},
		"an ops function invoked": {dataEvent(lambda, "Invoke", called+"a-1-ops"),
			"Calls of the operators' functions"},
		"CloudTrail's own writes": {dataEvent(object, "PutObject", fmt.Sprintf(bucket, "trail", "AWSLogs/x")),
			""},
		"a charge":                        {dataEvent(table, "UpdateItem", one+"a-1-counters"), ""},
		"a decision":                      {dataEvent(lambda, "Invoke", called+"a-1-authorizer"), ""},
		"a read of a resource, as a list": {record{"eventCategory": "Management", "readOnly": "true"}, ""},
		"an object of another bucket":     {dataEvent(object, "DeleteObject", "arn:aws:s3:::another/x"), ""},
		"a write to somebody else's table": {dataEvent(table, "PutItem",
			"arn:aws:dynamodb:eu-west-1:123456789012:table/other"), ""},
	}
	control := copyTemplate(t, "sluice-control")
	for _, what := range slices.Sorted(maps.Keys(all)) {
		if by := selectorOf(control, firstOf(control, "AWS::CloudTrail::Trail"), all[what].event); by != all[what].by {
			t.Errorf("%s: %v is selected by %q, want %q", what, all[what].event, by, all[what].by)
		}
	}
}

// Guarantees that only the archiver may write to the audit bucket, and only CloudTrail to its own; that nobody may
// choose the lock of an object, write a replica, or put objects into the audit bucket that its readers cannot read;
// that these denials except the break-glass role, if there is one; and that only the mode GOVERNANCE gives a warning
// when templates are made.
func TestBreakGlass(t *testing.T) {
	const glass = "arn:aws:iam::123456789012:role/glass"
	for _, mode := range []string{config.Governance, config.Compliance} {
		for _, role := range []string{"", glass} {
			out := *outdir(t)
			app := awscdk.NewApp(&awscdk.AppProps{AnalyticsReporting: jsii.Bool(false), Outdir: &out})
			d := &config.Deployment{
				Control: config.Control{Region: "eu-west-1", Audit: config.Audit{Mode: mode, BreakGlass: role}},
				Cells:   []config.Cell{{ID: "here", Region: "eu-west-1"}},
			}
			if mode == config.Compliance {
				d.Control.Audit.RetentionDays, d.Control.Audit.Confirm = 400, config.Confirmation(400)
			}
			if _, err := infra.NewStacks(app, d, stubs()); err != nil {
				t.Fatal(err)
			}
			app.Synth(nil)
			raw, err := os.ReadFile(filepath.Join(out, "sluice-control.template.json"))
			if err != nil {
				t.Fatal(err)
			}
			written, err := filepath.Glob(filepath.Join(out, "*"))
			if err != nil {
				t.Fatal(err)
			}
			warned := false
			for _, file := range written {
				text, _ := os.ReadFile(file) // fails for folders, which are not needed
				warned = warned || strings.Contains(string(text), "sluice:governance")
			}
			if warned != (mode == config.Governance) {
				t.Errorf("mode %s gives a warning: %t", mode, warned)
			}
			breakGlassHolds(t, decode(t, raw), mode, role)
		}
	}
}

// breakGlassHolds checks the policies and the locks of the two buckets of the trail.
func breakGlassHolds(t *testing.T, one *template, mode, role string) {
	t.Helper()
	statements := map[string][]any{}
	for _, p := range one.ofType("AWS::S3::BucketPolicy") {
		for _, s := range list(p.get("PolicyDocument", "Statement")) {
			sid := fmt.Sprint(get(s, "Sid"))
			statements[sid] = append(statements[sid], s)
		}
	}
	if n := len(statements["NobodyRemoves"]); n != 2 {
		t.Errorf("%s: %d buckets deny removal, want 2", mode, n)
	}
	for _, s := range statements["NobodyRemoves"] {
		if but := strings.Join(one.texts(get(s, "Condition", "ArnNotEquals", "aws:PrincipalArn")), " "); but != role {
			t.Errorf("%s: removal is denied to all but %q, want %q", mode, but, role)
		}
	}
	if n := len(statements["OnlyTheTrailsFunctionsWrite"]); n != 1 {
		t.Fatalf("%s: %d buckets are written by the archiver alone, want 1", mode, n)
	}
	writers := one.texts(get(statements["OnlyTheTrailsFunctionsWrite"][0], "Condition", "ArnNotEquals",
		"aws:PrincipalArn"))
	if len(writers) == 0 || !strings.HasPrefix(writers[0], "${ControlArchiverRole") || strings.Join(writers[1:],
		" ") != role {
		t.Errorf("%s: the audit bucket may be written by %q", mode, writers)
	}
	writesAround(t, one, role)
	writesWhatCannotBeRead(t, one, writers[0], role)
	for _, b := range one.ofType("AWS::S3::Bucket") {
		if got := b.get("ObjectLockConfiguration", "Rule", "DefaultRetention", "Mode"); got != mode {
			t.Errorf("%s: a bucket's mode is %v", mode, got)
		}
		for _, rule := range list(b.get("LifecycleConfiguration", "Rules")) {
			if days := get(rule, "ExpirationInDays"); days != map[string]float64{config.Governance: 365,
				config.Compliance: 400}[mode] {
				t.Errorf("%s: the trail's records expire after %v days", mode, days)
			}
		}
	}
}

// request holds what the policy of a bucket can see of a request over TLS: values by condition key.
type request map[string]string

// meets reports whether a condition of a statement is true. A condition with NotEquals is also true if the key is
// missing.
func (r request) meets(one *template, operator, key string, values any) bool {
	value, there := r[key]
	switch {
	case operator == "Null":
		return fmt.Sprint(values) == fmt.Sprint(!there)
	case strings.HasSuffix(operator, "NotEquals"):
		return !slices.Contains(one.texts(values), value)
	}
	return false
}

// denied reports whether the policy of a bucket denies an action on the bucket's objects.
func denied(one *template, bucket, action string, r request) bool {
	for _, p := range one.ofType("AWS::S3::BucketPolicy") {
		if !strings.HasPrefix(fmt.Sprint(get(p.get("Bucket"), "Ref")), bucket) {
			continue
		}
		for _, s := range list(p.get("PolicyDocument", "Statement")) {
			all := func(on string) bool { return strings.HasSuffix(on, ".Arn}/*") }
			applies := get(s, "Effect") == "Deny" && get(s, "Principal", "AWS") == "*" &&
				slices.Contains(one.texts(get(s, "Action")), action) &&
				slices.ContainsFunc(one.texts(get(s, "Resource")), all)
			conditions, _ := get(s, "Condition").(map[string]any)
			for operator, keys := range conditions {
				for key, values := range keys.(map[string]any) {
					applies = applies && r.meets(one, operator, key, values)
				}
			}
			if applies {
				return true
			}
		}
	}
	return false
}

// writesAround tries every way to write to the two buckets of the trail other than those of their writers.
func writesAround(t *testing.T, one *template, glass string) {
	t.Helper()
	const (
		trail      = "arn:aws:cloudtrail:eu-west-1:123456789012:trail/"
		service    = "cloudtrail.amazonaws.com"
		own, files = "ControlAudit", "ControlTrailRecords"
	)
	somebody := request{"aws:PrincipalArn": "arn:aws:iam::123456789012:role/somebody"}
	tries := map[string]struct {
		bucket, action string
		request
		denied bool
	}{
		"CloudTrail writes a file": {files, "s3:PutObject",
			request{"aws:SourceArn": trail + "sluice-trail", "aws:PrincipalServiceName": service}, false},
		"CloudTrail writes for somebody else's trail": {files, "s3:PutObject",
			request{"aws:SourceArn": trail + "other", "aws:PrincipalServiceName": service}, true},
		"another service writes": {files, "s3:PutObject", request{"aws:SourceArn": trail + "sluice-trail",
			"aws:PrincipalServiceName": "logging.s3.amazonaws.com"}, true},
		"somebody covers a file":   {files, "s3:PutObject", somebody, true},
		"somebody covers a record": {own, "s3:PutObject", somebody, true},
	}
	for _, bucket := range []string{own, files} {
		for _, action := range []string{"s3:PutObjectRetention", "s3:ReplicateObject", "s3:ReplicateDelete",
			"s3:PutReplicationConfiguration", "s3:PutLifecycleConfiguration"} {
			tries[action+" on "+bucket] = struct {
				bucket, action string
				request
				denied bool
			}{bucket, action, somebody, true}
		}
	}
	for _, what := range slices.Sorted(maps.Keys(tries)) {
		try := tries[what]
		if got := denied(one, try.bucket, try.action, try.request); got != try.denied {
			t.Errorf("%s: denied is %t, want %t", what, got, try.denied)
		}
		if glass != "" && denied(one, try.bucket, try.action, request{"aws:PrincipalArn": glass}) {
			t.Errorf("%s: it is denied to the break-glass role", what)
		}
	}
}

// writesWhatCannotBeRead tries to put objects that their readers cannot read, as each of those who may put objects.
func writesWhatCannotBeRead(t *testing.T, one *template, writer, glass string) {
	t.Helper()
	const (
		class, algorithm = "s3:x-amz-storage-class", "s3:x-amz-server-side-encryption"
		customer         = "s3:x-amz-server-side-encryption-customer-algorithm"
		key              = "s3:x-amz-server-side-encryption-aws-kms-key-id"
	)
	for what, try := range map[string]struct {
		headers request
		denied  bool
	}{
		"as our functions put":        {request{}, false},
		"the class that is the usual": {request{class: "STANDARD"}, false},
		"the bucket's own encryption": {request{algorithm: "AES256"}, false},
		"both, as they are":           {request{class: "STANDARD", algorithm: "AES256"}, false},
		"a class to be restored":      {request{class: "GLACIER"}, true},
		"another one":                 {request{class: "DEEP_ARCHIVE", algorithm: "AES256"}, true},
		"one that may archive":        {request{class: "INTELLIGENT_TIERING"}, true},
		"one that is read at once":    {request{class: "GLACIER_IR"}, true},
		"a key of the writer":         {request{customer: "AES256"}, true},
		"a key in KMS": {request{algorithm: "aws:kms",
			key: "arn:aws:kms:eu-west-1:999999999999:key/x"}, true},
		"the account's own key in KMS": {request{algorithm: "aws:kms"}, true},
		"two layers":                   {request{algorithm: "aws:kms:dsse"}, true},
	} {
		put := func(bucket string, as request) bool {
			maps.Copy(as, try.headers)
			return denied(one, bucket, "s3:PutObject", as)
		}
		if got := put("ControlAudit", request{"aws:PrincipalArn": writer}); got != try.denied {
			t.Errorf("a function of the trail puts an object, %s: denied: %t, want %t", what, got, try.denied)
		}
		if glass != "" && put("ControlAudit", request{"aws:PrincipalArn": glass}) {
			t.Errorf("the break-glass role puts an object, %s: it is denied", what)
		}
		if !put("ControlTrailRecords", request{"aws:PrincipalArn": writer}) {
			t.Errorf("a function of the trail puts an object into CloudTrail's bucket, %s: it is not denied", what)
		}
		if service := (request{
			"aws:SourceArn":            "arn:aws:cloudtrail:eu-west-1:123456789012:trail/sluice-trail",
			"aws:PrincipalServiceName": "cloudtrail.amazonaws.com",
		}); !try.denied && put("ControlTrailRecords", service) {
			t.Errorf("CloudTrail puts an object, %s: it is denied", what)
		}
	}
}

// Guarantees that only the role of the anchor function may sign with the key of the anchors, that administrators may
// neither sign nor create grants, that the key is kept when its stack is deleted, and that each function of the trail
// may write only its own objects.
func TestAnchorKey(t *testing.T) {
	one := copyTemplate(t, "sluice-control")
	key := firstOf(one, "AWS::KMS::Key")
	if key.get("KeySpec") != "ECC_NIST_P256" || key.get("KeyUsage") != "SIGN_VERIFY" || !isRetained(key) {
		t.Errorf("the key has the spec %v, the usage %v and the deletion policy %s", key.get("KeySpec"),
			key.get("KeyUsage"), key.DeletionPolicy)
	}
	role := func(principal any) bool {
		return strings.HasPrefix(strings.Join(one.texts(principal), " "), "${ControlAnchorRole")
	}
	seen := map[string]bool{}
	for _, s := range list(key.get("KeyPolicy", "Statement")) {
		sid, actions := fmt.Sprint(get(s, "Sid")), one.texts(get(s, "Action"))
		seen[sid] = true
		signs := slices.ContainsFunc(actions, func(a string) bool {
			return a == "kms:Sign" ||
				a == "kms:CreateGrant" || strings.Contains(a, "*")
		})
		but := get(s, "Condition", "ArnNotEquals", "aws:PrincipalArn")
		switch sid {
		case "Administration":
			if signs || get(s, "Effect") != "Allow" {
				t.Errorf("administrators may %v", actions)
			}
		case "TheAnchorFunctionSigns":
			if !slices.Equal(actions, []string{"kms:Sign"}) || !role(get(s, "Principal", "AWS")) {
				t.Errorf("%v may %v", get(s, "Principal"), actions)
			}
		case "NobodyElseSigns":
			if get(s, "Effect") != "Deny" || !slices.Equal(actions, []string{"kms:Sign", "kms:CreateGrant"}) ||
				!role(but) ||
				fmt.Sprint(get(s, "Principal", "AWS")) != "*" {
				t.Errorf("%v is denied to %v but %v", actions, get(s, "Principal"), but)
			}
		default:
			t.Errorf("the key's policy has the unexpected statement %s", sid)
		}
	}
	if len(seen) != 3 {
		t.Errorf("the key's policy has the statements %v, want 3", seen)
	}
	writers := map[string]string{}
	for _, p := range one.ofType("AWS::S3::BucketPolicy") {
		for _, s := range list(p.get("PolicyDocument", "Statement")) {
			// the statement is about how an object is put, not about who puts it
			if get(s, "Condition", "Null") != nil {
				continue
			}
			var roles []string
			for _, arn := range one.texts(get(s, "Condition", "ArnNotEquals", "aws:PrincipalArn")) {
				roles = append(roles, regexp.MustCompile(`Control(\w+?)Role`).FindStringSubmatch(arn)[1])
			}
			for _, on := range one.texts(get(s, "Resource")) {
				if get(s, "Action") == "s3:PutObject" && get(s, "Effect") == "Deny" && strings.Contains(on, "Audit") {
					writers[on[strings.Index(on, "/"):]] = strings.Join(roles, " ")
				}
			}
		}
	}
	want := map[string]string{"/*": "Archiver Anchor", "/audit/*": "Archiver", "/rejected/*": "Archiver",
		"/anchors/*": "Anchor"}
	if !maps.Equal(writers, want) {
		t.Errorf("objects may be written by %v, want %v", writers, want)
	}
}
