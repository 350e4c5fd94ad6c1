package redis

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// maxBatch is the largest number of commands in one batch. With 64, the share of each command in the one write and the
// one read is already negligible. Larger batches would only make callers wait for more commands of others.
const maxBatch = 64

// batcher sends the commands of callers that ask at the same moment in one write, as one pipeline. This saves most of
// what a decision costs client and server: the system calls for a write and a read of its own, and the switches between
// the goroutines that wait for them.
//
// The first caller of a batch, its leader, lets the other goroutines that are ready to run go first, and then sends
// what they have added meanwhile. It does not wait: if nobody has added anything, its command is sent alone. If no
// other command is in progress, the caller does not even let other goroutines go first.
//
// A command of a batch is sent once, and has a reply or an error of its own. If the connection breaks, each command
// whose reply has not come fails. Decisions are sent as one command, which runs decide.lua once for all of them
// (mergeDecisions).
//
// In cluster mode there are no batches: callers would wait for the slowest of the nodes that their commands go to.
type batcher struct {
	client goredis.UniversalClient
	// slack is by how much the deadline of a caller that joins a batch may be earlier than the batch's. A batch ends at
	// the earliest of its callers' deadlines.
	slack time.Duration
	yield func() // lets other goroutines run: runtime.Gosched

	underWay atomic.Int64 // number of callers of process that wait for a reply
	mu       sync.Mutex
	open     *batch // the batch that further callers add commands to, or nil
}

// batch is some commands that are sent in one write.
type batch struct {
	commands []goredis.Cmder
	deadline time.Time     // the earliest of the callers' deadlines
	done     chan struct{} // closed when each command has its reply or error; nil if there is only one command
}

// newBatcher returns a batcher for a client of one server. deadline is the usual time limit of a decision.
func newBatcher(client goredis.UniversalClient, deadline time.Duration) *batcher {
	return &batcher{client: client, slack: deadline / 8, yield: runtime.Gosched}
}

// process sends a command, waits for its reply, and returns the command's error.
func (b *batcher) process(ctx *timeoutContext, cmd goredis.Cmder) error {
	alone := b.underWay.Add(1) == 1
	defer b.underWay.Add(-1)
	// A deadline that the caller has shortened would end the commands of others early.
	if alone || ctx.shortened {
		return b.client.Process(ctx, cmd)
	}
	batch, leads := b.join(ctx, cmd)
	switch {
	case batch == nil:
		return b.client.Process(ctx, cmd)
	case !leads:
		<-batch.done
		return cmd.Err()
	}
	b.yield()
	b.close(batch)
	if len(batch.commands) == 1 {
		return b.client.Process(ctx, cmd)
	}
	defer close(batch.done) // also after a panic, which net/http recovers from: others must not wait forever
	ctx.at = batch.deadline
	commands, merged := mergeDecisions(ctx, batch.commands)
	pipeline := b.client.Pipeline()
	_ = pipeline.BatchProcess(ctx, commands...) // only stores them
	_, _ = pipeline.Exec(ctx)                   // each command has its own error
	if merged != nil {
		merged.distribute(ctx, b.client)
	}
	return cmd.Err()
}

// mergedCommand stands for several commands that run decide.lua.
type mergedCommand struct {
	noRetryCmd
	parts []goredis.Cmder
}

// mergeDecisions returns the commands to send in place of those of a batch, and the one among them that stands for all
// decisions, or nil if there are fewer than two.
func mergeDecisions(ctx *timeoutContext, commands []goredis.Cmder) (send []goredis.Cmder, merged *mergedCommand) {
	var decisions []goredis.Cmder
	for _, cmd := range commands {
		if c, ok := cmd.(noRetryCmd); ok && c.script == decideScript() {
			decisions = append(decisions, cmd)
		} else {
			send = append(send, cmd)
		}
	}
	if len(decisions) < 2 {
		return commands, nil
	}
	const beforeKeys = 3 // the command, the hash and the number of keys
	args := make([]any, beforeKeys, beforeKeys+3*len(decisions))
	for _, cmd := range decisions {
		args = append(args, cmd.Args()[beforeKeys:len(cmd.Args())-1]...)
	}
	args[0], args[1], args[2] = "evalsha", decideScript().hash, len(args)-beforeKeys
	for _, cmd := range decisions {
		args = append(args, cmd.Args()[len(cmd.Args())-1])
	}
	merged = &mergedCommand{noRetryCmd{goredis.NewCmd(ctx, args...), decideScript()}, decisions}
	return append(send, merged), merged
}

// distribute gives each of the commands its part of the reply. If the server does not know the script, it has done
// nothing, and distribute sends the source first.
func (m *mergedCommand) distribute(ctx *timeoutContext, client goredis.UniversalClient) {
	if err := m.Err(); err != nil && goredis.HasErrorPrefix(err, "NOSCRIPT") {
		args := m.Args()
		args[0], args[1] = "eval", m.script.source
		m.noRetryCmd = noRetryCmd{goredis.NewCmd(ctx, args...), nil}
		_ = client.Process(ctx, m) // the command has the error
	}
	replies, err := m.Slice()
	if err == nil && len(replies) != len(m.parts) {
		err = errMalformedReply
	}
	for i, part := range m.parts {
		if err != nil {
			part.SetErr(err)
		} else if failed, ok := replies[i].(error); ok {
			part.SetErr(failed)
		} else {
			part.(noRetryCmd).SetVal(replies[i])
		}
	}
}

// join adds a command to the open batch, or to a new one that the caller leads. It returns nil if the caller's deadline
// is too early for the open batch.
func (b *batcher) join(ctx *timeoutContext, cmd goredis.Cmder) (joined *batch, leads bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	open := b.open
	if open == nil || len(open.commands) == maxBatch {
		b.open = &batch{commands: append(make([]goredis.Cmder, 0, 8), cmd), deadline: ctx.at}
		return b.open, true
	}
	if ctx.at.Before(open.deadline) {
		if ctx.at.Before(open.deadline.Add(-b.slack)) {
			return nil, false
		}
		open.deadline = ctx.at
	}
	if open.done == nil {
		open.done = make(chan struct{})
	}
	open.commands = append(open.commands, cmd)
	return open, false
}

// close ends the time in which callers can add commands to a batch.
func (b *batcher) close(closing *batch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == closing { // else it was full
		b.open = nil
	}
}
