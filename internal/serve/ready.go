package serve

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluicelimits/sluice/internal/limiter/limit"
	"github.com/sluicelimits/sluice/internal/limiter/resilience"
	"github.com/sluicelimits/sluice/internal/limiter/store/redis"
	"github.com/sluicelimits/sluice/internal/stores"
)

const (
	// readyOwners is how many owners a store is asked about. In a cluster they fall on different nodes: 16 of them on
	// one node of a cluster with two are less likely than 1 in 60,000.
	readyOwners = 16

	askAgainAfter   = 250 * time.Millisecond // between two attempts to get the first answer of the stores
	unansweredEvery = 10 * time.Second       // between two lines of the log while they do not answer
)

// askStore asks a store for counters that nobody uses, and charges nothing. The error says whether the store is
// reachable, accepts the credentials, and allows what decisions need.
func askStore(ctx context.Context, s limit.Store) error {
	l, err := limit.New(limit.Limit{ID: "ready", Tiers: []limit.Tier{{Algorithm: limit.FixedWindow, Threshold: 1,
		Period: time.Hour}}})
	if err != nil {
		return err
	}
	for i := range readyOwners {
		var d limit.Decision
		owner := limit.Owner{Kind: limit.AnyKey, Name: "sluice/ready/" + strconv.Itoa(i)}
		req := &limit.Request{Owner: owner, Charges: []limit.Charge{{Limit: l, Cost: 1}}}
		if err := s.Peek(ctx, req, time.Now(), &d); err != nil {
			return err
		}
	}
	return nil
}

// ask asks a store whether it answers. The error names the flag.
func ask(ctx context.Context, s *stores.Shared, chain *resilience.Chain) error {
	err := askStore(ctx, s.Store)
	if err == nil {
		select {
		case <-chain.Instances.Counted(): // a charge has succeeded
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(askAgainAfter):
			err = errors.New("it answers questions, and has not taken a charge yet")
		}
	}
	if err == nil {
		return nil
	}
	advice, refused := redis.Refused(err)
	if !refused {
		return err
	}
	if strings.HasPrefix(advice, "it is a node of a cluster") {
		advice += ": add --redis-cluster"
	}
	if advice != "" {
		advice += ". "
	}
	return &refusedError{fmt.Errorf("%s %s: %sIt refuses this client: %w. Correct the flags, or give "+
		"--start-without-store to decide by the fallback limiter meanwhile", s.Flag, s.Value, advice, err)}
}

// refusedError is the error of a store that refuses this client. Asking again has no use.
type refusedError struct{ error }

// awaitStores asks the stores until each of them has answered once, and then closes the channel that it returns. If a
// store refuses this client, awaitStores returns an error, or ends the service with that error later. The first attempt
// is over when awaitStores returns.
func (o *Options) awaitStores(
	ctx context.Context, c *stores.Counters, end context.CancelCauseFunc,
) (<-chan struct{}, error) {
	ready := make(chan struct{})
	var lastLogged time.Time
	attempt := func() (done bool, err error) {
		for _, s := range c.Shared {
			err := ask(ctx, &s, c.Chain)
			if err == nil || ctx.Err() != nil {
				continue
			}
			if refused := new(refusedError); errors.As(err, &refused) && !o.StartWithoutStore {
				return true, err
			}
			if time.Since(lastLogged) >= unansweredEvery {
				lastLogged = time.Now()
				o.Log.Warn(o.unanswered(&s), strings.TrimPrefix(s.Flag, "--"), s.Value, "error", err)
			}
			return false, nil
		}
		return true, nil
	}
	done, err := attempt()
	if err != nil {
		return nil, err
	}
	if done || o.StartWithoutStore {
		close(ready)
	}
	if !done {
		go func() {
			for !done && err == nil && ctx.Err() == nil {
				<-time.After(askAgainAfter)
				done, err = attempt()
			}
			switch {
			case err != nil:
				end(err)
			case ctx.Err() == nil:
				o.Log.Info("every store has answered")
				if !o.StartWithoutStore {
					close(ready)
				}
			}
		}()
	}
	return ready, nil
}

// unanswered is the line of the log about a store that has not answered since the start.
func (o *Options) unanswered(s *stores.Shared) string {
	name := "DynamoDB"
	if s.Flag == "--redis" {
		name = "Redis"
	}
	then := "it answers, this instance is not ready, and decides nothing"
	if o.StartWithoutStore {
		then = "it answers, limits hold approximately"
	}
	return fmt.Sprintf("the %s of %s does not answer: start it, or correct the flag. Until %s", name, s.Flag, then)
}
