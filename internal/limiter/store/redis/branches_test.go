package redis

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// Guarantees that each algorithm has an entry in the table of algorithms.go, from which the scripts know how long its
// records are.
func TestAlgorithmsHaveEntries(t *testing.T) {
	widths := strings.Split(strings.TrimPrefix(commonLua(), "local WIDTH = {"), ", ")
	for _, a := range limit.Algorithms() {
		if int(a) >= len(algorithms) || algorithms[a].width == 0 {
			t.Errorf("the table in algorithms.go has no entry for %s", a)
			continue
		}
		if want := fmt.Sprint(algorithms[a].width); widths[a-1] != want {
			t.Errorf("the scripts' table %q has the width %s for %s, want %s", commonLua(), widths[a-1], a, want)
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
	l, err := limit.New(limit.Limit{ID: "l", Tiers: []limit.Tier{
		{Algorithm: limit.FixedWindow, Threshold: 10, Period: time.Hour}}})
	if err != nil {
		t.Fatal(err)
	}
	acme := limit.Owner{Kind: limit.Tenant, Name: "acme"}
	req := &limit.Request{Owner: acme, Charges: []limit.Charge{{Limit: l, Cost: 1}}}
	d := new(limit.Decision)
	if err := s.Decide(t.Context(), req, time.Now(), d); err != nil {
		t.Fatal(err)
	}
	common := strings.Replace(commonLua(), "{", fmt.Sprintf("{[%d] = 3, ", unknown), 1)

	ctx := withTimeout(t.Context(), s.deadline)
	defer ctx.release()
	q := new(query)
	q.begin(s, req, time.Now().UnixMicro(), true)
	q.encodeGeneral()
	const numbersBefore = 3 + 6 // numbers of the request and its pack
	binary.LittleEndian.PutUint64(q.numbers[8*numbersBefore:], math.Float64bits(unknown))
	q.heads[0] = unknown
	_, err = s.runScript(ctx, newScript(common+replyTime+decideSource), q.generalScriptArgs())
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
	args := s.refundArgs(d.Receipt(), 1, time.Now())
	ids := args[len(args)-1].(string)
	args[len(args)-1] = string(rune(unknown)) + ids[1:]
	_, err = s.runScript(ctx, newScript(common+refundSource), args)
	if want := "refund.lua has no branch for algorithm 99"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a refund: %v, want %q", err, want)
	}
}

// Guarantees that commands which run the same script for one key each are sent as one command, also if the server does
// not know the script, that each gets its own reply, and that what fails for one key is the error of that command
// alone.
func TestMergedCommands(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	if err := client.RPush(t.Context(), "list", 1).Err(); err != nil {
		t.Fatal(err)
	}
	const source = "if KEYS[1] == 'bad' then error('no such thing') end\n" +
		"return call('APPEND', KEYS[1], ARGV[1] .. ARGV[2]) .. ''\n"
	sc := newScript(shapeScriptNames + source)
	sc.many = newScript(runsMany(sc.source[len("#!lua\n"):]))
	for round := 1; round <= 2; round++ {
		ctx := withTimeout(t.Context(), 20*time.Second)
		var commands []goredis.Cmder
		for i, key := range []string{"a", "list", "bad", "b"} {
			cmd := goredis.NewCmd(ctx, "evalsha", sc.hash, 1, key, strings.Repeat("x", i+1), "y")
			commands = append(commands, noRetryCmd{cmd, sc})
		}
		send, merged := mergeCommands(ctx, commands)
		if len(send) != 1 || len(merged) != 1 {
			t.Fatalf("%d commands are sent, and %d of them stand for several; want one", len(send), len(merged))
		}
		_ = client.Process(ctx, send[0]) // the command has the error
		merged[0].distribute(ctx, client)
		ctx.release()
		for i, want := range []string{strconv.Itoa(2 * round), "", "", strconv.Itoa(5 * round)} {
			cmd := commands[i].(noRetryCmd)
			if got, err := cmd.Text(); (err == nil) != (want != "") || got != want {
				t.Errorf("round %d, command %d: %q, %v; want %q", round, i, got, err, want)
			}
		}
		for i, want := range map[int]string{1: "WRONGTYPE", 2: "no such thing"} {
			if err := explainServerError(commands[i].Err()); !errors.Is(err, limit.ErrUnreadable) ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("round %d, command %d: %v, want ErrUnreadable because of %s", round, i, err, want)
			}
		}
	}
}
