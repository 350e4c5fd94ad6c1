package environ

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/sluicelimits/sluice/internal/request/identity/token"
)

// issuer is the JSON form of a [token.Issuer].
type issuer struct {
	Issuer        string   `json:"issuer"`
	Audiences     []string `json:"audiences"`
	JWKSURL       string   `json:"jwksUrl"`
	Algorithms    []string `json:"algorithms"`
	AudienceClaim string   `json:"audienceClaim"`
	TenantClaim   string   `json:"tenantClaim"`
	SubjectClaim  string   `json:"subjectClaim"`
	Tenants       []string `json:"tenants"`
	AllTenants    bool     `json:"allTenants"`
}

// members are the member names of issuer. The decoder of encoding/json ignores case, so it would read two members as
// one.
var members = []string{"issuer", "audiences", "jwksUrl", "algorithms", "audienceClaim", "tenantClaim", "subjectClaim",
	"tenants", "allTenants"}

const (
	maxIssuersBytes = 1 << 20
	maxDepth        = 8 // of the JSON; a valid text has three levels
)

// issuers reads a JSON array of issuers. It is strict, because a member that is read in two ways could decide who may
// name which tenant.
func issuers(to *[]token.Issuer, text []byte) (wrong string) {
	if err := once(json.NewDecoder(bytes.NewReader(text)), 0); err != nil {
		return "must be a JSON array of issuers: " + err.Error()
	}
	var read []issuer
	var kind *json.UnmarshalTypeError
	if err := json.Unmarshal(text, &read); errors.As(err, &kind) && kind.Field != "" {
		return "must be a JSON array of issuers: " + kind.Field + " is a " + kind.Value
	} else if errors.As(err, &kind) {
		return "must be a JSON array of issuers, and its value is of type " + kind.Value
	} else if err != nil {
		return "must be a JSON array of issuers: " + err.Error()
	}
	if len(read) == 0 {
		return "is to have an issuer at least; leave it out to accept no JWTs"
	}
	*to = make([]token.Issuer, len(read))
	for i, r := range read {
		(*to)[i] = token.Issuer(r)
	}
	return ""
}

// issuersFile reads issuers from a file of the bundle.
func issuersFile(to *[]token.Issuer, bundle fs.FS, name string) (wrong string) {
	if !fs.ValidPath(name) || name == "." {
		return "must be a path inside the bundle, without a slash in front and without . and .."
	}
	f, err := bundle.Open(name)
	if err != nil {
		return "names a file that cannot be read: " + reason(err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxIssuersBytes+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return "names a file that cannot be read: " + reason(err)
	}
	if len(text) > maxIssuersBytes {
		return fmt.Sprintf("names a file of more than %d bytes", maxIssuersBytes)
	}
	return issuers(to, text)
}

// reason returns the text of an error without the path of the file, which the operator's variable holds.
func reason(err error) string {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err.Error()
	}
	return err.Error()
}

// once reads one JSON value. It refuses an object that has a member twice, and an issuer that has an unknown member.
func once(d *json.Decoder, depth int) error {
	if depth > maxDepth {
		return errors.New("it is nested too deep")
	}
	t, err := d.Token()
	if err != nil {
		return broken(err)
	}
	open, ok := t.(json.Delim)
	if !ok {
		return nil
	}
	seen := make(map[string]bool)
	for d.More() {
		if open == '{' {
			t, err := d.Token()
			if err != nil {
				return broken(err)
			}
			name, _ := t.(string)
			if depth == 1 && !slices.Contains(members, name) {
				return fmt.Errorf("unknown member %.32q", name)
			}
			if seen[name] {
				return fmt.Errorf("member %.32q occurs twice", name)
			}
			seen[name] = true
		}
		if err := once(d, depth+1); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return broken(err)
}

// broken renames the errors that the decoder calls an end of file.
func broken(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
