package redis

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/testkit/redistest"
)

// Guarantees that each algorithm has an entry in the table of algorithms.go, from which the scripts know how long its
// records are.
func TestAlgorithmsHaveEntries(t *testing.T) {
	widths := strings.Split(strings.TrimPrefix(widthTable(), "local WIDTH = {"), ", ")
	for _, a := range limit.Algorithms() {
		if int(a) >= len(algorithms) || algorithms[a].width == 0 {
			t.Errorf("the table in algorithms.go has no entry for %s", a)
			continue
		}
		if want := fmt.Sprint(algorithms[a].width); widths[a-1] != want {
			t.Errorf("the scripts' table %q has the width %s for %s, want %s", widthTable(), widths[a-1], a, want)
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
	table := strings.Replace(widthTable(), "{", fmt.Sprintf("{[%d] = 3, ", unknown), 1)

	ctx := withTimeout(t.Context(), s.deadline)
	defer ctx.release()
	q := new(query)
	q.begin(s, req, time.Now().UnixMicro(), true)
	q.encodeGeneral()
	const numbersBefore = 3 + 6 // numbers of the request and its pack
	binary.LittleEndian.PutUint64(q.numbers[8*numbersBefore:], math.Float64bits(unknown))
	q.heads[0] = unknown
	_, err = s.runScript(ctx, newScript(table+decideSource), q.generalScriptArgs())
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
	_, err = s.runScript(ctx, newScript(table+refundSource), args)
	if want := "refund.lua has no branch for algorithm 99"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a refund: %v, want %q", err, want)
	}
}
