package apigw

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluicelimits/sluice/internal/request/answer"
)

// ContextCaller is the decision and who calls in one text, always there: "d=allowed;t=acme;s=ci;p=pro;k=k1". It is for
// gateways that hand the context on in headers. A value that is left out of the context may leave a client's own header
// of that name in place; this one is never left out, so what overwrites one header with it leaves nothing to forge.
//
// The members: d the decision, t tenant, s subject, p plan, k key id (each percent-encoded, left out where it is ""),
// a=1 anonymous, f=1 the store failed.
const ContextCaller = "caller"

// maxCallerBytes is longer than any text that the encoder writes.
const maxCallerBytes = 4<<10 - 1

// ErrContext is a context that is missing or not one of ours. Nothing of it may be believed, and the request is to be
// denied. What wraps it holds no value of the context.
var ErrContext = errors.New("not a decision of the authorizer")

func distrust(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrContext}, args...)...)
}

// caller is the value of ContextCaller. What is encoded needs no escapes in JSON.
func caller(a *Answer) Value {
	var b strings.Builder
	const rest = len("d=;t=;s=;p=;k=;a=1;f=1") // names that need escapes grow it
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

// readName undoes the encoding of a name, and refuses whatever the encoder would not have written.
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

// coherent refuses an allowed call of nobody: the authorizer allows tenants, and anonymous calls.
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
