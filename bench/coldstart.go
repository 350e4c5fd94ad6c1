package bench

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluicelimits/sluice/internal/testkit/tokentest"
)

// starts holds how long the starts of one function took, in ms.
type starts struct {
	f             *function
	check         func(answer []byte) error
	init, answers []float64
}

// measure starts the function, calls it once, and ends it.
func (s *starts) measure(event []byte) error {
	r, err := s.f.start()
	if err != nil {
		return err
	}
	defer func() { _ = r.stop() }()
	began := time.Now()
	answer, err := r.invoke(event)
	took := time.Since(began)
	if err != nil {
		return err
	}
	if err := s.check(answer); err != nil {
		return fmt.Errorf("%s: %w", s.f.name, err)
	}
	environments := r.host.Stats().Environments
	if len(environments) != 1 || environments[0].Init <= 0 {
		return fmt.Errorf("%s: environments %+v, want one that has polled", s.f.name, environments)
	}
	s.init = append(s.init, environments[0].Init.Seconds()*1e3)
	s.answers = append(s.answers, took.Seconds()*1e3)
	return nil
}

// coldStartFigure measures the time from the execution of the authorizer's binary to its first poll of the Runtime API,
// as a multiple of that time of an empty function. The functions are started in turn.
func coldStartFigure(short bool) (Result, error) {
	var r Result
	d, err := deploy(tokentest.NewRSA("one"), 1, 0)
	if err != nil {
		return r, err
	}
	defer d.close()
	if err := d.withDynamoDB(); err != nil {
		return r, err
	}
	event, err := d.call("wide-0")
	if err != nil {
		return r, err
	}
	ours, err := d.function("authorizer", ".", "./functions/authorizer")
	if err != nil {
		return r, err
	}
	empty, err := d.function("empty", "bench", "./emptyfunction")
	if err != nil {
		return r, err
	}
	ours.env = d.with("SLUICE_REDIS_DEADLINE", "2s") // on a busy machine, a slow call is not a failure of Redis
	small := *ours                                   // the same binary, with other settings
	small.env = d.with("SLUICE_REDIS", "", "SLUICE_REDIS_TLS", "", "SLUICE_DYNAMODB_DEADLINE", "5s")
	all := []*starts{{f: ours, check: admitsFirst}, {f: empty, check: isNull}, {f: &small, check: admitsFirst}}
	rounds := 31
	if short {
		rounds = 3
	}
	for round := range rounds + 1 {
		for turn := range all {
			if err := all[(round+turn)%len(all)].measure(event); err != nil {
				return r, err
			}
		}
		if round == 0 { // not counted, because the files were read from the disk
			for _, s := range all {
				s.init, s.answers = nil, nil
			}
		}
	}
	r.Value = median(all[0].init) / median(all[1].init)
	for i, name := range []string{"with Redis, issuers, a secret and a plans file",
		"an empty function of aws-lambda-go", "a small cell, without Redis"} {
		s := all[i]
		r.note("%s: %.1f ms, at best %.1f (%.2f x and %.2f x the empty one's); to its first answer %.1f ms",
			name, median(s.init), slices.Min(s.init), median(s.init)/median(all[1].init),
			slices.Min(s.init)/slices.Min(all[1].init), median(s.answers))
	}
	r.note("medians of %d starts each, in turn", rounds)
	return r, nil
}

// admitsFirst returns an error unless the answer admits the tenant wide-0, and a store has counted the request.
func admitsFirst(answer []byte) error {
	o, err := read(answer, "wide-0")
	if err != nil {
		return err
	}
	if !o.allowed() || o.Context["storeFailed"] != nil {
		return fmt.Errorf("not admitted by a store: %s", answer)
	}
	return nil
}

// isNull returns an error unless the answer is null, which the empty function answers.
func isNull(answer []byte) error {
	if string(answer) != "null" {
		return fmt.Errorf("answers %s, want null", answer)
	}
	return nil
}
