package apigw

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluicelimits/sluice/internal/request/answer"
)

// ContextCaller is the name of a value that holds the decision and the caller in one text:
// "d=allowed;t=acme;s=ci;p=pro;k=k1". It is for gateways that map the context to headers. If a value is missing in the
// context, a client's own header of that name may stay in place. This value is never missing, so the header that is
// overwritten with it cannot be forged.
//
// The members are: d the decision; t tenant, s subject, p plan and k key id, each percent-encoded and left out if it is
// ""; a=1 if anonymous; f=1 if a store failed.
const ContextCaller = "caller"

// maxCallerBytes is more than the length of any text that the encoder writes.
const maxCallerBytes = 4<<10 - 1

// ErrContext means that a context is missing or was not written by the authorizer. It must not be trusted, and the
// request must be denied. Errors that wrap it contain no value of the context.
var ErrContext = errors.New("not a decision of the authorizer")

func distrust(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrContext}, args...)...)
}

// caller returns the value of ContextCaller. Its text needs no escapes in JSON.
func caller(a *Answer) Value {
	var b strings.Builder
	const rest = len("d=;t=;s=;p=;k=;a=1;f=1") // escapes in names make it longer
	b.Grow(rest + len(a.Kind.String()) + len(a.Tenant) + len(a.Subject) + len(a.Plan) + len(a.KeyID))
	b.WriteString("d=")
	b.WriteString(a.Kind.String())
	for _, m := range [...]struct{ name, value string }{{";t=", a.Tenant}, {";s=", a.Subject}, {";p=", a.Plan},
		{";k=", a.KeyID}} {
		if text := encode(m.value); text != "" && len(text) <= maxNameBytes {
			b.WriteString(m.name)
			b.WriteString(text)
		}
	}
	if a.Anonymous {
		b.WriteString(";a=1")
	}
	if a.StoreFailed {
		b.WriteString(";f=1")
	}
	return Value{ContextCaller, b.String(), true}
}

// ReadCaller reads a ContextCaller: Kind, the names, Anonymous and StoreFailed. The error wraps ErrContext.
func ReadCaller(text string) (Answer, error) {
	if len(text) > maxCallerBytes {
		return Answer{}, distrust("%d bytes, at most %d are read", len(text), maxCallerBytes)
	}
	var (
		a    Answer
		seen string
		err  error
	)
	for member := range strings.SplitSeq(text, ";") {
		name, value, whole := strings.Cut(member, "=")
		if !whole || len(name) != 1 || value == "" || strings.Contains(seen, name) {
			return Answer{}, distrust("a member that is empty, unknown or there twice")
		}
		seen += name
		switch name {
		case "d":
			err = readKind(&a, value)
		case "t":
			a.Tenant, err = readName(value)
		case "s":
			a.Subject, err = readName(value)
		case "p":
			a.Plan, err = readName(value)
		case "k":
			a.KeyID, err = readName(value)
		case "a":
			a.Anonymous, err = readFlag(value)
		case "f":
			a.StoreFailed, err = readFlag(value)
		default:
			err = distrust("an unknown member")
		}
		if err != nil {
			return Answer{}, err
		}
	}
	if !strings.Contains(seen, "d") {
		return Answer{}, distrust("no decision")
	}
	if err := coherent(&a); err != nil {
		return Answer{}, err
	}
	return a, nil
}

func readKind(a *Answer, name string) error {
	kind, ok := answer.ParseKind(name)
	if !ok {
		return distrust("an unknown decision")
	}
	a.Kind = kind
	return nil
}

// readName decodes a name, and refuses any text that the encoder would not have written.
func readName(text string) (string, error) {
	name := decode(text)
	if len(text) > maxNameBytes || encode(name) != text {
		return "", distrust("a name that is not percent-encoded as the authorizer does it")
	}
	return name, nil
}

func readFlag(text string) (bool, error) {
	if text != "1" {
		return false, distrust("a truth value that is none")
	}
	return true, nil
}

// coherent refuses an allowed call without a caller: the authorizer allows only calls of tenants and anonymous calls.
func coherent(a *Answer) error {
	switch {
	case a.Kind != answer.Allowed:
		return nil
	case a.Anonymous && (a.Tenant != "" || a.Subject != "" || a.KeyID != ""):
		return distrust("an anonymous call of a tenant")
	case !a.Anonymous && a.Tenant == "":
		return distrust("allowed, and nobody says for whom")
	}
	return nil
}
