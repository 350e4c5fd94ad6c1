//go:build unix

package repotest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// fakeAWS records its calls. It finds an error in policies about KMS, and FAKE says what does not work.
const fakeAWS = `#!/usr/bin/env bash
echo "$*" >>"$CALLS"
case "$1 $2" in
"sts get-caller-identity") echo 123456789012 ;;
"accessanalyzer validate-policy")
  [[ $FAKE != away ]] || { echo 'Could not connect' >&2; exit 255; }
  if [[ $FAKE == found && $* == *kms:* ]]; then
    echo '[{"findingType":"ERROR","issueCode":"INVALID_ACTION","findingDetails":"no such action"}]'
  else
    echo '[{"findingType":"SUGGESTION","issueCode":"EMPTY","findingDetails":"say less"}]'
  fi ;;
"cloudformation describe-change-set") echo "stack CREATE_COMPLETE None 40" ;;
"cloudformation describe-stacks")
  if [[ $FAKE == exists ]]; then echo UPDATE_COMPLETE; else echo REVIEW_IN_PROGRESS; fi ;;
esac
`

// Guarantees that make dry-run has every policy of the templates validated, in a form without references; that an error
// that is found, an analyzer that does not answer, and a reference that the script cannot replace all fail; and that of
// stacks it deletes only those that never had a resource.
func TestDryRun(t *testing.T) {
	soak.SkipInQuick(t)
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("jq is missing")
	}
	r := open(t)
	const manifest = `{"artifacts":{"s-control":{"type":"aws:cloudformation:stack","environment":"aws://1/us-east-1"}}}`
	const signs = `{"Resources":{"b":{"Type":"AWS::KMS::Key"},"a":{"Type":"AWS::IAM::Policy","Properties":` +
		`{"P":{"Statement":[{"Action":"kms:Sign","Resource":{"Fn::GetAtt":["b","Arn"]}}]}}}}}`
	for _, tt := range []struct {
		fake, template string
		passes         bool
		says           string
	}{
		{"clean", "", true, "34 policies validated, 0 errors"},
		{"exists", signs, true, "1 policies validated, 0 errors"},
		{"found", signs, false, "a.P: INVALID_ACTION"},
		{"away", signs, false, "Could not connect"},
		{"sub", `{"Resources":{"a":{"Type":"AWS::IAM::Policy","Properties":{"P":{"Statement":[{"Fn::Sub":"x"}]}}}}}`,
			false, `no example for {"Fn::Sub":"x"}`},
		{"none", `{"Resources":{}}`, false, "no policy"},
	} {
		root := t.TempDir()
		out := "infra/cdk.out/"
		files := map[string]string{
			"scripts/dry-run": string(r.read(t, "scripts/dry-run")), "bin/aws": fakeAWS,
			"scripts/cdk": "#!/usr/bin/env bash\necho \"cdk $*\" >>\"$CALLS\"\n", out + "manifest.json": manifest,
			out + "a.template.json": tt.template,
		}
		if tt.template == "" {
			files[out+"a.template.json"] = string(r.read(t, "infra/testdata/control.template.json"))
			files[out+"b.template.json"] = string(r.read(t, "infra/testdata/cell-small.template.json"))
		}
		for name, text := range files {
			file := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		calls := filepath.Join(root, "calls")
		run := exec.Command(filepath.Join(root, "scripts/dry-run"))
		run.Env = append(os.Environ(), "PATH="+filepath.Join(root, "bin")+":"+os.Getenv("PATH"), "FAKE="+tt.fake,
			"CALLS="+calls)
		said, err := run.CombinedOutput()
		if (err == nil) != tt.passes || !strings.Contains(string(said), tt.says) {
			t.Errorf("%s: error %v, want passed=%t and %q:\n%s", tt.fake, err, tt.passes, tt.says, said)
		}
		text, err := os.ReadFile(calls)
		if err != nil {
			t.Fatal(err)
		}
		made := string(text)
		if strings.Contains(made, `"Ref"`) || strings.Contains(made, "Fn::") {
			t.Errorf("%s: a policy has a reference in it:\n%s", tt.fake, made)
		}
		if !strings.Contains(made, "cdk deploy --all") || !strings.Contains(made, "--method prepare-change-set") ||
			strings.Contains(made, "execute-change-set") {
			t.Errorf("%s: the stacks are not only prepared:\n%s", tt.fake, made)
		}
		if got := strings.Contains(made, "delete-stack"); got != (tt.fake != "exists") {
			t.Errorf("%s: the stack was deleted: %t", tt.fake, got)
		}
	}
}
