package token

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
)

// issuerMembers are the names of the members of an [Issuer] in JSON. The decoder of encoding/json ignores case, so it
// would read two members as one.
var issuerMembers = []string{"issuer", "audiences", "jwksUrl", "jwksFile", "algorithms", "audienceClaim", "tenantClaim",
	"subjectClaim", "tenants", "allTenants"}

const (
	maxIssuersBytes = 1 << 20
	maxDepth        = 8 // of the JSON; a valid text has three levels
)

// Issuers are those whose JWTs are accepted.
type Issuers []Issuer

// Read reads issuers with [ReadIssuers].
func (i *Issuers) Read(from io.Reader) (err error) {
	*i, err = ReadIssuers(from)
	return err
}

// Check returns the error of [New] with these issuers.
func (i *Issuers) Check() error {
	v, err := New(Config{Issuers: *i})
	if err == nil {
		v.Close()
	}
	return err
}

// ReadIssuers reads a JSON array of issuers, of at most 1 MiB. It is strict, because a member that is read in two ways
// could decide who may name which tenant. It checks the form only; [New] checks the rest. The text of the error
// continues a sentence that begins with the name of what was read.
func ReadIssuers(from io.Reader) ([]Issuer, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxIssuersBytes+1))
	if at := new(fs.PathError); errors.As(err, &at) { // the caller names the file
		err = at.Err
	}
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	if len(text) > maxIssuersBytes {
		return nil, fmt.Errorf("has more than %d bytes", maxIssuersBytes)
	}
	if err := once(json.NewDecoder(bytes.NewReader(text)), 0); err != nil {
		return nil, fmt.Errorf("must be a JSON array of issuers: %w", err)
	}
	var read []Issuer
	var kind *json.UnmarshalTypeError
	if err := json.Unmarshal(text, &read); errors.As(err, &kind) && kind.Field != "" {
		return nil, fmt.Errorf("must be a JSON array of issuers: %s is a %s", kind.Field, kind.Value)
	} else if errors.As(err, &kind) {
		return nil, fmt.Errorf("must be a JSON array of issuers, and its value is of type %s", kind.Value)
	} else if err != nil {
		return nil, fmt.Errorf("must be a JSON array of issuers: %w", err)
	}
	if len(read) == 0 {
		return nil, errors.New("has no issuer; leave it out to accept no JWTs")
	}
	return read, nil
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
			if depth == 1 && !slices.Contains(issuerMembers, name) {
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
