package pacer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"time"

	"github.com/sluicelimits/sluice/pacer"
)

// A client that may send 100 requests in each second waits for its turn before each of them.
func Example() {
	provider, err := pacer.New(pacer.Config{
		Limit: pacer.PerSecond(100),
		Guard: pacer.Guard{ClockError: 10 * time.Millisecond, MaxDelay: 50 * time.Millisecond},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close()

	send := func(ctx context.Context, r *http.Request) (*http.Response, error) {
		permit, err := provider.Acquire(ctx, "reports", 1)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithDeadline(ctx, permit.UseBy())
		defer cancel()
		return http.DefaultClient.Do(r.WithContext(ctx))
	}
	_ = send
}

// A program that sends three requests, at most five in each second.
func ExamplePacer_Acquire() {
	p, err := pacer.New(pacer.Config{Limit: pacer.PerSecond(5)})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()

	for _, job := range []string{"first", "second", "third"} {
		if _, err := p.Acquire(context.Background(), "", 1); err != nil { // waits for its turn
			log.Fatal(err)
		}
		fmt.Println("send", job)
	}
	// Output:
	// send first
	// send second
	// send third
}

// A program with many waiting requests needs no goroutine for each of them.
func ExamplePacer_Enqueue() {
	p, err := pacer.New(pacer.Config{Limit: pacer.Limit{Units: 2, Period: time.Hour}})
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"first", "second", "third"} {
		w := pacer.WakerFunc(func(_ pacer.Permit, err error) { fmt.Println(name, err) })
		if _, err := p.Enqueue("reports", 1, pacer.Forever, w); err != nil {
			log.Fatal(err)
		}
	}
	p.Close()
	// Output:
	// first <nil>
	// second <nil>
	// third pacer: closed
}

// A request that cannot be served in time is refused at once.
func ExampleLateError() {
	p, err := pacer.New(pacer.Config{Limit: pacer.Limit{Units: 10, Period: 24 * time.Hour}})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, cost := range []int64{7, 7} {
		_, err := p.Acquire(ctx, "reports", cost)
		var late *pacer.LateError
		fmt.Println(errors.As(err, &late))
	}
	// Output:
	// false
	// true
}

// Interactive requests get three times the share of a batch job while both wait.
func ExamplePacer_SetWeight() {
	p, err := pacer.New(pacer.Config{Limit: pacer.Limit{Units: 1, Period: time.Hour}})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	if err := p.SetWeight("interactive", 3); err != nil {
		log.Fatal(err)
	}
	if _, err := p.Acquire(context.Background(), "batch", 1); err != nil {
		log.Fatal(err)
	}
	for range 4 {
		for _, key := range []string{"batch", "interactive"} {
			w := pacer.WakerFunc(func(_ pacer.Permit, err error) {
				if err == nil {
					fmt.Println(key)
				}
			})
			if _, err := p.Enqueue(key, 1, pacer.Forever, w); err != nil {
				log.Fatal(err)
			}
		}
	}
	if err := p.SetLimit(pacer.Limit{Units: 5, Period: time.Hour}); err != nil { // four more
		log.Fatal(err)
	}
	// Output:
	// batch
	// interactive
	// interactive
	// interactive
}

// An HTTP client that waits for its turn, and obeys Retry-After and the limits that the provider states.
func ExampleTransport() {
	p, err := pacer.New(pacer.Config{
		Limit:     pacer.PerSecond(1000), // the most that the client ever sends
		Smoothing: pacer.Spread,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	client := &http.Client{Transport: &pacer.Transport{
		Pacer: p,
		Key:   func(r *http.Request) string { return r.Header.Get("X-Customer") },
	}}
	resp, err := client.Get("https://api.example.com/reports")
	if err != nil {
		log.Print(err)
		return
	}
	log.Print(resp.Status, resp.Body.Close())
}

// One of 96 instances that divide a limit among themselves, with a plan in a file.
func ExamplePacer_FollowPlan() {
	ctx := context.Background()
	p, err := pacer.New(pacer.Config{
		Limit: pacer.PerSecond(1000), // of all instances together
		Part:  &pacer.Part{Instances: 96, Index: 17},
	})
	if err != nil {
		panic(err)
	}
	go p.FollowPlan(ctx, time.Second, pacer.PlanFile("plan.json"), func(err error) { slog.Error("plan", "error", err) })
}
