package redis

import (
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

var (
	//go:embed shared.lua
	sharedSource string

	//go:embed decide.lua
	decideSource string
)

// decideScript decides. Like settleScript, it is made when it is first needed, because making the two scripts would add
// 0.15 ms to the start of a Lambda function.
var decideScript = sync.OnceValue(func() *script {
	return newScript(sharedSource + replyTime + decideSource + eachDecision)
})

// eachDecision is the end of the script that decides. What fails for one decision is an error in its place.
const eachDecision = `
local replies, first = {}, 0
for i = 1, #ARGV do
  local fine, reply = pcall(decide, ARGV[i], first)
  if not fine and type(reply) ~= 'table' then reply = redis.error_reply('ERR user_script: ' .. tostring(reply)) end
  replies[i], first = reply, first + sunpack('<H', ARGV[i], 10)
end
return #ARGV == 1 and replies[1] or replies
`

// script is a Lua script. Its first line, "#!lua" without the flag no-writes, declares it as a script that writes, so
// that a replica refuses it even if it would only read: a replica's data is old. Redis 7 and Valkey know that line.
type script struct {
	source string
	hash   any // a string, converted to any once
}

// newScript returns a script with this source.
func newScript(source string) *script {
	source = "#!lua\n" + source
	return &script{source: source, hash: goredis.NewScript(source).Hash()}
}

// noRetryCmd is a command that the client never sends a second time, because the first time it may have been carried
// out.
type noRetryCmd struct {
	*goredis.Cmd
	script *script // that the command runs by its hash; nil if the command has the source
}

// NoRetry is called by the client.
func (noRetryCmd) NoRetry() bool { return true }

// runDecision encodes the request for decide.lua, and runs it.
func (s *Store) runDecision(ctx *timeoutContext, q *query) (reply string, err error) {
	q.encode()
	reply, err = s.runScript(ctx, decideScript(), q.scriptArgs())
	if err == nil && reply == "" {
		err = fmt.Errorf("%w: decide.lua replied 0", errMalformedReply)
	}
	return reply, err
}

// runScript runs a script by its hash. If the server does not know the hash, it has done nothing, and runScript sends
// the whole source. The first two places of args are for the command and the script. A script declines a request
// by replying 0; runScript then returns "".
func (s *Store) runScript(ctx *timeoutContext, sc *script, args []any) (string, error) {
	args[0], args[1] = "evalsha", sc.hash
	cmd := noRetryCmd{goredis.NewCmd(ctx, args...), sc}
	err := s.process(ctx, cmd)
	if err != nil && goredis.HasErrorPrefix(err, "NOSCRIPT") { // HasErrorPrefix allocates also if there is no error
		args[0], args[1] = "eval", sc.source
		cmd = noRetryCmd{goredis.NewCmd(ctx, args...), nil}
		err = s.process(ctx, cmd)
	}
	if err != nil {
		return "", explainServerError(err)
	}
	switch v := cmd.Val().(type) {
	case string:
		if v != "" {
			return v, nil
		}
	case int64:
		if v == 0 {
			return "", nil
		}
	}
	return "", fmt.Errorf("%w: %.100v", errMalformedReply, cmd.Val())
}

// process sends a command, together with those of other callers if it can, and waits for its reply.
func (s *Store) process(ctx *timeoutContext, cmd goredis.Cmder) error {
	if s.batches == nil {
		return s.client.Process(ctx, cmd)
	}
	return s.batches.process(ctx, cmd)
}

// explainServerError translates an error of the client or the server into one of package limit or of this package, and
// adds what the operator can do, if there is something. An error that a script reports about the counters of one owner
// is one for which [limit.Answered] is true: the server has answered.
func explainServerError(err error) error {
	switch text := err.Error(); {
	case goredis.HasErrorPrefix(err, "SLUICE two values share a counter"):
		return limit.ErrDuplicateCounter
	case goredis.HasErrorPrefix(err, "SLUICE unreadable: "):
		return fmt.Errorf("%w: %s", limit.ErrUnreadable, strings.TrimPrefix(text, "SLUICE unreadable: "))
	case goredis.HasErrorPrefix(err, "SLUICE full: "):
		return fmt.Errorf("%w: %s", limit.ErrFull, strings.TrimPrefix(text, "SLUICE full: "))
	case goredis.HasErrorPrefix(err, "WRONGTYPE"), strings.HasPrefix(text, "ERR user_script:"):
		// A script fails only on data that it did not expect under one of the owner's keys.
		return fmt.Errorf("%w: a script failed on it: %s", limit.ErrUnreadable, text)
	case goredis.HasErrorPrefix(err, "READONLY"):
		return fmt.Errorf("the server became a replica: %w: %w", ErrReplica, err)
	case goredis.HasErrorPrefix(err, "MOVED"), goredis.HasErrorPrefix(err, "CROSSSLOT"):
		return fmt.Errorf("the server belongs to a cluster: use cluster mode: %w", err)
	case errors.Is(err, goredis.ErrPoolTimeout):
		return fmt.Errorf("all connections are in use; if that lasts, raise the pool size: %w", err)
	}
	return err
}
