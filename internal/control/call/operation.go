package call

import "context"

// Operation is one operation of an operators' API. Make it with Often, Single or Rare. The resources and throttles of
// the REST APIs, and docs/permissions.md, are made from the operations that the functions answer.
type Operation struct {
	Path   string // below the stage, as in "/keys/create"
	Writes bool   // the operation changes something

	// PerSecond and Burst are API Gateway's throttle, over all callers: calls per second, and calls at once.
	PerSecond, Burst int

	Does     string   // for people, in Markdown, without a full stop
	Commands []string // commands of sluice that call it, without the word sluice

	do func(ctx context.Context, actor string, body []byte) (any, error)
}

// Do carries out the call of an operation. Request must be a struct. A call is refused if it has members that Request
// does not have, names in another case, names that occur twice, or text that is not UTF-8.
type Do[Request, Response any] func(ctx context.Context, actor string, r *Request) (Response, error)

// Throttles. An operation that a command calls in a loop has 50 calls per second. The lower rates are chosen, not
// measured: for operations that a command calls once, and for rare operations that do much.

// Often returns an operation that a command calls in a loop.
func Often[Q, A any](path string, do Do[Q, A], writes bool, does string, commands ...string) Operation {
	return Operation{path, writes, 50, 50, does, commands, decoded(do)}
}

// Single returns an operation that a command calls once. A script may run many such commands.
func Single[Q, A any](path string, do Do[Q, A], writes bool, does string, commands ...string) Operation {
	return Operation{path, writes, 20, 40, does, commands, decoded(do)}
}

// Rare returns an operation that is seldom called and does much: it reads whole tables, or moves shares of all tenants.
func Rare[Q, A any](path string, do Do[Q, A], writes bool, does string, commands ...string) Operation {
	return Operation{path, writes, 5, 10, does, commands, decoded(do)}
}

func decoded[Q, A any](do Do[Q, A]) func(ctx context.Context, actor string, body []byte) (any, error) {
	return func(ctx context.Context, actor string, body []byte) (any, error) {
		var q Q
		if err := decode(body, &q); err != nil {
			return nil, err
		}
		return do(ctx, actor, &q)
	}
}
