package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
)

// A call that leases charges many units at once. If its reply is lost, or if a server that stalls carries it out after
// the caller has stopped waiting, these units would lie idle until their window ends. decide.lua therefore keeps its
// reply to such a call under a key that has the call's id, and findScript reads it. If there is no reply, findScript
// writes an empty one, which makes decide.lua refuse the call if it arrives later. So whatever findScript has told
// stays true.

// replyKeptFor is how long the server keeps a reply or a refusal. A circuit breaker lets a call through some seconds
// after the server has come back, and the reply is asked for with it.
const replyKeptFor = 30 * time.Second

// replyTime is the Lua line with replyKeptFor in ms, for decide.lua and findScript.
var replyTime = fmt.Sprintf("local REPLY_KEPT_FOR = %d\n", replyKeptFor.Milliseconds())

// findScript returns the reply that the server keeps under KEYS[1]. If it keeps no reply, the script writes an empty
// one, which refuses the call, and returns 0.
var findScript = sync.OnceValue(func() *script {
	return newScript(replyTime + `local reply = redis.call('GET', KEYS[1])
if reply and reply ~= '' then return reply end
redis.call('SET', KEYS[1], '', 'PX', REPLY_KEPT_FOR)
return 0
`)
})

func appendReplyKey(b, prefix []byte, id limit.ReceiptID) []byte {
	return fmt.Appendf(append(b, prefix...), "reply:%016x%016x", id.Hi, id.Lo)
}

// asksForUnits reports whether any units are to be charged or leased. Corrections alone need no reply.
func asksForUnits(leases []limit.LeaseRequest) bool {
	return slices.ContainsFunc(leases, func(a limit.LeaseRequest) bool { return a.Need > 0 || a.Largest() > 0 })
}

// lostReply returns err, the error of a query whose reply is kept, as a [limit.LostReply] unless the server has
// replied.
func (s *Store) lostReply(q *query, callerNow time.Time, err error) error {
	var replied goredis.Error
	if limit.Answered(err) || errors.As(err, &replied) {
		return err
	}
	req, id := &limit.Request{
		Owner: q.req.Owner, Charges: slices.Clone(q.req.Charges), Leases: slices.Clone(q.req.Leases),
	}, q.id
	return &limit.LostReply{Cause: err, Request: req, KeptFor: replyKeptFor,
		Find: func(ctx context.Context, d *limit.Decision) (bool, error) {
			charged, err := s.findReply(ctx, req, id, callerNow, d)
			if err != nil {
				err = fmt.Errorf("redis store: what a call without a reply charged %s: %w", ownerText(req.Owner), err)
			}
			return charged, err
		}}
}

// findReply implements Find of [limit.LostReply].
func (s *Store) findReply(
	parent context.Context, req *limit.Request, id limit.ReceiptID, callerNow time.Time, d *limit.Decision,
) (charged bool, err error) {
	ctx := withTimeout(parent, s.deadline)
	defer ctx.release()
	q := queries.Get().(*query)
	defer q.release()
	q.begin(s, req, callerNow.UnixMicro(), true)
	reply, err := s.runScript(ctx, findScript(), []any{nil, nil, 1, string(appendReplyKey(nil, q.prefix, id))})
	if err != nil || reply == "" {
		return false, err
	}
	if err := q.decode(reply, d); err != nil {
		return false, err
	}
	d.ID = id
	return true, nil
}
