package stage

import (
	"bytes"
	"crypto/hmac"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/dev/gateway/front"
	"github.com/sluicelimits/sluice/internal/request/answer"
)

// AWSIAM is the authorization of a route whose callers sign with AWS credentials.
const AWSIAM = "AWS_IAM"

// Credential describes an access key and the caller to whom it belongs. All fields except SessionToken and User are
// required.
type Credential struct {
	Secret       string // the secret access key
	SessionToken string // only temporary credentials have one
	Account      string // 12 digits
	Caller       string // the unique id: AIDA… of a user, AROA…:session of a role
	UserARN      string
	User         string // default Caller: API Gateway reports this value for users and for roles
}

// String returns the ARN, so that a credential can be printed without its secret.
func (c Credential) String() string { return c.UserARN }

// GoString is like String.
func (c Credential) GoString() string { return c.UserARN }

// checkCredentials returns an error that names what a credential lacks. The error contains no secret.
func checkCredentials(all map[string]Credential) error {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		c := all[key]
		missing := ""
		switch {
		case c.Secret == "":
			missing = "Secret"
		case !number12.MatchString(c.Account):
			missing = "Account of 12 digits"
		case c.Caller == "":
			missing = "Caller"
		case !strings.HasPrefix(c.UserARN, "arn:"):
			missing = "UserARN"
		}
		switch {
		case key == "" || strings.ContainsAny(key, "/,= "):
			return errors.New("stage: Credentials: the id of an access key is empty or contains a character that " +
				"no id has")
		case missing != "":
			return fmt.Errorf("stage: Credentials: the credential of %s has no %s", shown(c.UserARN), missing)
		}
	}
	return nil
}

const (
	skew       = 5 * time.Minute // largest difference between the date of a signature and now, in either direction
	iamService = "execute-api"
)

const (
	typeIncomplete   = "IncompleteSignatureException"
	typeUnrecognized = "UnrecognizedClientException"
	wrongToken       = "The security token included in the request is invalid."
	wrongSignature   = "The request signature we calculated does not match the signature you provided. Check your " +
		"AWS Secret Access Key and signing method. Consult the service documentation for details."
)

// unsound returns the refusal of a request whose signature cannot be read or whose signer is not known. Its type typ
// has no gateway response of its own, so only DEFAULT_4XX changes the answer.
func unsound(typ, message string) *refusal {
	return &refusal{failure: failure{status: http.StatusForbidden, typ: typ, message: message}}
}

func invalid(message string) *refusal {
	f := failureOf(invalidSignature)
	f.message = message
	return &refusal{failure: f}
}

// identify checks that a known caller signed the request, that the request is as it was signed, and that the API's
// resource policy does not deny the signer. The refusal is nil if the request may pass. IAM policies of the signer are
// not evaluated.
func (c *call) identify() *refusal {
	s, message := c.readSignature()
	switch {
	case message != "":
		return unsound(typeIncomplete, message)
	case s == nil:
		return &refusal{failure: failureOf(missingToken)}
	}
	if message := c.outOfScope(s); message != "" {
		return invalid(message)
	}
	credential, ok := c.s.c.Credentials[s.key]
	if !ok || subtle.ConstantTimeCompare([]byte(s.token), []byte(credential.SessionToken)) != 1 {
		return unsound(typeUnrecognized, wrongToken)
	}
	body, err := c.readBody()
	if err != nil {
		return &refusal{failure: failureFor(bodyKind(err))}
	}
	if !hmac.Equal([]byte(s.value), []byte(s.sign(credential.Secret, c.canonical(s, body)))) {
		return invalid(wrongSignature)
	}
	if slices.ContainsFunc(c.s.d.ResourcePolicy, func(d Denial) bool { return d.denies(&credential, c.peer) }) {
		return &refusal{failure: failureOf(accessDenied)}
	}
	c.signer, c.accessKey = &credential, s.key
	delete(c.header, "Authorization") // API Gateway does not pass it to integrations, as observed
	return nil
}

// outOfScope returns what is wrong with the date and the scope of a signature; "" if nothing is.
func (c *call) outOfScope(s *signature) string {
	now := c.now.Truncate(time.Second)
	oldest := now.Add(-skew)
	var wrong []string
	switch {
	case s.at.Before(oldest):
		return fmt.Sprintf("Signature expired: %s is now earlier than %s (%s - 5 min.)", s.at.Format(timestamp),
			oldest.Format(timestamp), now.Format(timestamp))
	case s.at.After(now.Add(skew)):
		return fmt.Sprintf("Signature not yet current: %s is still later than %s (%s + 5 min.)",
			s.at.Format(timestamp), now.Add(skew).Format(timestamp), now.Format(timestamp))
	case !slices.Contains(s.headers, "host"):
		return "'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization."
	}
	if s.region != c.s.d.Region {
		wrong = append(wrong, "Credential should be scoped to a valid region.")
	}
	if s.service != iamService {
		wrong = append(wrong, "Credential should be scoped to correct service: '"+iamService+"'.")
	}
	if s.terminator != terminator {
		wrong = append(wrong, "Credential should be scoped with a valid terminator: '"+terminator+"'.")
	}
	if s.day != s.at.Format("20060102") {
		wrong = append(wrong, "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from "+
			"HTTP.")
	}
	return strings.Join(wrong, " ")
}

// readBody reads the body, and leaves it for the integration.
func (c *call) readBody() ([]byte, error) {
	if c.r.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(c.r.Body)
	if err != nil {
		return nil, err
	}
	r := *c.r
	r.Body = io.NopCloser(bytes.NewReader(body))
	c.r = &r
	return body, nil
}

// bodyKind returns the kind of answer to a body that cannot be read.
func bodyKind(err error) answer.Kind {
	kind, _ := front.BodyKind(err)
	return kind
}

// identity adds who signed the request to an event; each member is null if the route has another authorization.
func (c *call) identity(o object) object {
	for _, name := range []string{"accessKey", "accountId", "caller", "user", "userArn"} {
		o[name] = nil
		if v, ok := c.signedBy(name); ok {
			o[name] = v
		}
	}
	return o
}

// signedBy returns a member of requestContext.identity; false if the request is not signed.
func (c *call) signedBy(name string) (string, bool) {
	if c.signer == nil {
		return "", false
	}
	switch name {
	case "accessKey":
		return c.accessKey, true
	case "accountId":
		return c.signer.Account, true
	case "caller":
		return c.signer.Caller, true
	case "userArn":
		return c.signer.UserARN, true
	}
	if c.signer.User != "" {
		return c.signer.User, true
	}
	return c.signer.Caller, true
}
