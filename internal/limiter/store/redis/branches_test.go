package redis

import (
	"errors"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/limit/limittest"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// Guarantees that each algorithm has an entry in the table of algorithms.go.
func TestAlgorithmsHaveEntries(t *testing.T) {
	for _, a := range limit.Algorithms() {
		if int(a) >= len(algorithms) || algorithms[a].numbers == nil {
			t.Errorf("the table in algorithms.go has no entry for %s", a)
		}
	}
}

// Guarantees that a script says that it has no branch for an algorithm, and does not count it as another one.
func TestScriptsNameUnknownAlgorithms(t *testing.T) {
	const unknown = 99
	server := redistest.Start(t)
	s, err := New(t.Context(), Config{Addrs: []string{server.Addr}, Deadline: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	l := limittest.MustNew(t, limit.Limit{ID: "l", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 10, Period: time.Hour}}})
	acme := limit.Owner{Kind: limit.Tenant, Name: "acme"}
	req := &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: 1}}}
	d := new(limit.Decision)
	if err := s.Decide(t.Context(), req, time.Now(), d); err != nil {
		t.Fatal(err)
	}
	ctx := withTimeout(t.Context(), s.deadline)
	defer ctx.release()
	q := new(query)
	q.begin(s, req, time.Now().UnixMicro(), true)
	q.encode()
	const head = 13 + 10 // after what the text says of the request and of the pack
	q.text[head], q.text[head+17] = unknown, unknown
	_, err = s.runScript(ctx, decideScript(), q.scriptArgs())
	if want := "decide.lua has no branch for algorithm 99"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a decision: %v, want %q", err, want)
	}

	key := string(appendPackKey(nil, s.appendPrefix(nil, req.Owner), l, limit.Value{}))
	client := server.Client(t)
	pack, err := client.Get(t.Context(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Set(t.Context(), key, pack[:6]+string(rune(unknown))+pack[7:], time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	args := s.settleArgs(d.Receipt(), nil, time.Now(), nil, nil)
	ids := args[len(args)-2].(string)
	args[len(args)-2] = string(rune(unknown)) + ids[1:]
	_, err = s.runScript(ctx, settleScript(), args)
	if want := "settle.lua has no branch for algorithm 99"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a refund: %v, want %q", err, want)
	}
}

// Guarantees that decisions which are sent as one command each get their own reply, also if the server does not know
// the script, and that what fails for one of them is the error of that one alone.
func TestMergedDecisions(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	s, err := New(t.Context(), Config{Addrs: []string{server.Addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	l := limittest.MustNew(t, limit.Limit{ID: "l", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 100, Period: limit.MaxPeriod}}})
	owners := []string{"a", "list", "bad", "b"}
	if err := client.RPush(t.Context(), "{rl:t4:list,}", 1).Err(); err != nil {
		t.Fatal(err)
	}
	for round := int64(1); round <= 2; round++ {
		ctx := withTimeout(t.Context(), 20*time.Second)
		queries := make([]query, len(owners))
		var commands []goredis.Cmder
		for i, owner := range owners {
			q := &queries[i]
			q.begin(s, &limit.Request{Owner: limit.Owner{Kind: limit.Tenant, Name: owner},
				Charges: []limit.Charge{{Limit: l, Cost: int64(i + 1)}}}, time.Now().UnixMicro(), true)
			q.encode()
			if owner == "bad" {
				q.text = q.text[:len(q.text)-1]
			}
			args := q.scriptArgs()
			args[0], args[1] = "evalsha", decideScript().hash
			commands = append(commands, noRetryCmd{goredis.NewCmd(ctx, args...), decideScript()})
		}
		other := goredis.NewCmd(ctx, "ping")
		send, merged := mergeDecisions(ctx, append(commands, other))
		if len(send) != 2 || merged == nil || len(merged.parts) != len(owners) {
			t.Fatalf("%d commands are sent, and %+v stands for several; want two, and one for %d", len(send), merged,
				len(owners))
		}
		_ = client.Process(ctx, merged) // the command has the error
		merged.distribute(ctx, client)
		ctx.release()
		for i, want := range []string{"", "is not a string", "data string too short", ""} {
			reply, err := commands[i].(noRetryCmd).Text()
			if want != "" {
				if err := explainServerError(commands[i].Err()); !errors.Is(err, limit.ErrUnreadable) ||
					!strings.Contains(err.Error(), want) {
					t.Errorf("round %d, command %d: %v, want ErrUnreadable because of %s", round, i, err, want)
				}
				continue
			}
			var d limit.Decision
			if err == nil {
				err = queries[i].decode(reply, &d)
			}
			if left := 100 - round*int64(i+1); err != nil || d.Results[0].Remaining() != left {
				t.Errorf("round %d, command %d: %v; want %d left", round, i, err, left)
			}
		}
	}
}
