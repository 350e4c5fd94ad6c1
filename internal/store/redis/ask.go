package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limit"
)

//go:embed decide.lua
var decideSource string

// decideScript knows every case; the scripts of shapes know the usual ones.
var decideScript = newScript(decideSource)

// script is a Lua script. Its first line makes it one that writes, so that a replica refuses it whatever it is about to do:
// what a replica says is old. (Redis 7 and Valkey know that line.)
type script struct {
	source string
	hash   any // a string, converted once
}

func newScript(source string) *script {
	source = "#!lua\n" + source
	return &script{source: source, hash: goredis.NewScript(source).Hash()}
}

// once is a command that no layer of the client sends again after it may have been carried out.
type once struct{ *goredis.Cmd }

// NoRetry is read by the client.
func (once) NoRetry() bool { return true }

// ask asks the script for requests of this shape, if there is one, and where that does not apply decide.lua.
func (s *Store) ask(ctx context.Context, q *question) (reply string, general bool, err error) {
	if !s.generalOnly && len(q.req.Leases) == 0 && q.encodeShape() {
		if sh := q.shapeOf(); sh != nil {
			reply, err = s.run(ctx, sh, q.shapeArgs())
			if err != nil || reply != "" {
				s.answered(false)
				return reply, false, err
			}
		}
	}
	q.encode()
	reply, err = s.run(ctx, decideScript, q.generalArgs())
	if err == nil && reply == "" {
		err = fmt.Errorf("%w: it is empty", errReply)
	}
	s.answered(true)
	return reply, true, err
}

// inspect has decide.lua look at the packs that a script of a shape could not make sense of, so that what is unreadable is
// dropped in a minute.
func (s *Store) inspect(ctx context.Context, q *question) error {
	q.charge = false
	q.encode()
	_, err := s.run(ctx, decideScript, q.generalArgs())
	return err
}

func (s *Store) answered(general bool) {
	if s.onAnswer != nil {
		s.onAnswer(general)
	}
}

// run sends a script by its hash, and once more in full where the server does not know it: then it did nothing. args has
// room for the command's name and the script in front. The reply is "" where the script says that it does not apply.
func (s *Store) run(ctx context.Context, sc *script, args []any) (string, error) {
	args[0], args[1] = "evalsha", sc.hash
	cmd := once{goredis.NewCmd(ctx, args...)}
	err := s.client.Process(ctx, cmd)
	if goredis.HasErrorPrefix(err, "NOSCRIPT") {
		args[0], args[1] = "eval", sc.source
		cmd = once{goredis.NewCmd(ctx, args...)}
		err = s.client.Process(ctx, cmd)
	}
	if err != nil {
		return "", translate(err)
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
	return "", fmt.Errorf("%w: %.100v", errReply, cmd.Val())
}

// translate names what an error of the server means, and says what an operator can do about it. What the scripts say of
// the counters of one owner means that the server answered, see [limit.Answered].
func translate(err error) error {
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
		return fmt.Errorf("no connection is free: %w", err)
	}
	return err
}
