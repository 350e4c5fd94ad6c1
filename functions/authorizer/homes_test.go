//go:build unix

package main

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/cell/table"
	"github.com/sluicelimits/sluice/internal/limiter/store/dynamodb"
	"github.com/sluicelimits/sluice/internal/testkit/dynamodbtest"
)

const yearly = `      - { id: year, quota: { units: 120, every: year } }`

// Guarantees that deployed cells together grant nearly all units of one quota and no unit more, from the counters table
// of the tenant's home cell; that the other cell leases there, and gives back at its end what it did not spend; and
// that a cell that cannot reach the home grants nothing and logs why.
func TestCellsShareAQuota(t *testing.T) {
	eu, us, lost := newWorld(t, yearly), newWorld(t, yearly), newWorld(t, yearly)
	us.key, lost.key = eu.key, eu.key
	client, done := dynamodbtest.Connect(eu.withDynamoDB())
	defer done()
	us.withDynamoDB()
	lost.withDynamoDB()
	config := newConfigTable(t, client)
	config.apply(1, plans(yearly, eu.key),
		table.Document{Ref: table.Ref{Kind: table.KindShares, ID: table.SharesID}, Version: 1,
			Body: []byte(
				`{"version":2,"epoch":1,"phase":"steady","skew_us":0,"members":[{"cell":"eu-1","state":"active",` +
					`"weight":1},` +
					`{"cell":"us-1","state":"active","weight":1}],` +
					`"generations":[{"epoch":1,"from":1,"cells":[{"cell":"eu-1","weight":1},{"cell":"us-1",` +
					`"weight":1}]}]}`)})
	homes := "eu-1=" + eu.env["SLUICE_COUNTERS_TABLE"] + ",us-1=" + us.env["SLUICE_COUNTERS_TABLE"]
	for name, w := range map[string]*world{"eu-1": eu, "us-1": us, "ap-1": lost} {
		delete(w.env, "SLUICE_CONFIG_FILE")
		w.env["SLUICE_CELL"], w.env["SLUICE_CONFIG_TABLE"] = name, config.name
		if w != lost {
			w.env["SLUICE_HOMES"], w.env["SLUICE_HOME_DEADLINE"] = homes, "5s"
		}
		w.start()
	}
	admitted := map[*world]int{}
	var mu sync.Mutex
	// ask calls each cell until it denies, at most most times.
	ask := func(most int) {
		var both sync.WaitGroup
		for _, w := range []*world{eu, us} {
			both.Go(func() {
				for range most {
					o, err := w.call("x-api-key", w.key)
					for end := time.Now().Add(patient); err == nil && o.Context["decision"] == "unidentified" &&
						time.Now().Before(end); { // a busy machine could not read the configuration in time
						o, err = w.call("x-api-key", w.key)
					}
					if err != nil || o.effect() != "Allow" && o.Context["decision"] != "limited" ||
						o.Context["storeFailed"] != nil {
						t.Errorf("%s answers %+v, %v\n%s", w.env["SLUICE_CELL"], o, err, strings.Join(w.output(), "\n"))
						return
					}
					if o.effect() != "Allow" {
						return
					}
					mu.Lock()
					admitted[w]++
					mu.Unlock()
				}
			})
		}
		both.Wait()
	}
	ask(20)
	if admitted[eu] != 20 || admitted[us] != 20 {
		t.Errorf("%d and %d admitted of 20 each", admitted[eu], admitted[us])
	}
	for end := time.Now().Add(patient); admitted[eu]+admitted[us] < 100 && time.Now().Before(end) && !t.Failed(); {
		ask(1000)
	}
	eu.close()
	us.close()
	sum := admitted[eu] + admitted[us]
	if sum > 120 || sum < 100 {
		t.Errorf("%d and %d admitted, want nearly 120 together, and no more", admitted[eu], admitted[us])
	}
	counted := map[*world]int64{}
	for _, w := range []*world{eu, us} {
		store, err := dynamodb.New(dynamodb.Config{Client: client, Table: w.env["SLUICE_COUNTERS_TABLE"],
			Timeout: patient})
		if err != nil {
			t.Fatal(err)
		}
		counted[w] = w.usedUnits(store, yearly)
	}
	home, other := eu, us
	if counted[us] > 0 {
		home, other = us, eu
	}
	if counted[home] != int64(sum) || counted[other] != 0 {
		t.Errorf("%d and %d counted after the end, want the %d that were spent in one table", counted[eu], counted[us],
			sum)
	}
	if here, there := names(checkLines(t, home.output())),
		names(checkLines(t, other.output())); slices.Contains(here, "store_latency_home") ||
		!slices.Contains(there, "store_latency_home") {
		t.Errorf("metrics of the home %v, of the other cell %v; want the home's latency in the other's", here, there)
	}
	o, err := lost.call("x-api-key", lost.key)
	if err != nil || o.effect() != "Deny" || o.Context["decision"] != "not_here" {
		t.Errorf("a cell without a way to the home answers %+v, %v", o, err)
	}
	lost.close()
	if told := strings.Join(lost.output(), "\n"); !strings.Contains(told, `"home":"`+home.env["SLUICE_CELL"]+`"`) {
		t.Errorf("the log does not name the home: %s", told)
	}
}

const tiny = `      - { id: tiny, tiers: [ { period: 24h, threshold: 5 } ] }`

// Guarantees that deployed cells grant a limit too small to be divided in every cell, and no unit more than it has
// together, with and without a Redis for their own rates: the limit is counted in the home's DynamoDB, and not in the
// home's Redis, which the other cell cannot reach.
func TestCellsShareASmallLimit(t *testing.T) {
	for _, withRedis := range []bool{false, true} {
		eu, us := newWorld(t, tiny), newWorld(t, tiny)
		us.key = eu.key
		client, done := dynamodbtest.Connect(eu.withDynamoDB())
		defer done()
		us.withDynamoDB()
		config := newConfigTable(t, client)
		config.apply(1, plans(tiny, eu.key),
			table.Document{Ref: table.Ref{Kind: table.KindShares, ID: table.SharesID}, Version: 1,
				Body: []byte(
					`{"version":2,"epoch":1,"phase":"steady","skew_us":0,"members":[{"cell":"eu-1","state":"active",` +
						`"weight":1},{"cell":"us-1","state":"active","weight":1}],` +
						`"generations":[{"epoch":1,"from":1,"cells":[{"cell":"eu-1","weight":1},{"cell":"us-1",` +
						`"weight":1}],` +
						`"homed":[{"plan":"pro","limit":"tiny"}]}]}`)})
		homes := "eu-1=" + eu.env["SLUICE_COUNTERS_TABLE"] + ",us-1=" + us.env["SLUICE_COUNTERS_TABLE"]
		for name, w := range map[string]*world{"eu-1": eu, "us-1": us} {
			if withRedis {
				w.withRedis()
			}
			delete(w.env, "SLUICE_CONFIG_FILE")
			w.env["SLUICE_CELL"], w.env["SLUICE_CONFIG_TABLE"] = name, config.name
			w.env["SLUICE_HOMES"], w.env["SLUICE_HOME_DEADLINE"], w.env["SLUICE_DYNAMODB_DEADLINE"] = homes, "5s", "5s"
			w.start()
		}
		for i, w := range []*world{eu, us, us, eu, us, eu, us} {
			o, err := w.call("x-api-key", w.key)
			if err != nil {
				t.Fatal(err)
			}
			if admitted := o.effect() == "Allow"; admitted != (i < 5) || o.Context["storeFailed"] != nil || !admitted &&
				o.Context["decision"] != "limited" {
				t.Errorf("with Redis %t: call %d, of cell %s, is answered %+v\n%s", withRedis, i+1,
					w.env["SLUICE_CELL"], o, strings.Join(w.output(), "\n"))
			}
		}
		var counted []int64
		for _, w := range []*world{eu, us} {
			store, err := dynamodb.New(dynamodb.Config{Client: client, Table: w.env["SLUICE_COUNTERS_TABLE"],
				Timeout: patient})
			if err != nil {
				t.Fatal(err)
			}
			counted = append(counted, w.usedUnits(store, tiny))
		}
		if slices.Sort(counted); counted[0] != 0 || counted[1] != 5 {
			t.Errorf("with Redis %t: %v counted in the two tables, want all 5 in one", withRedis, counted)
		}
		eu.close()
		us.close()
	}
}
