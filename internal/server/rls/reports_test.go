package rls_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluicelimits/sluice/internal/server/rls"
)

// Guarantees that a limit is reached whose hits are reported when a request is over: a request asks with 0 hits, and
// its report counts also if it does not fit. This holds by default for each kind of rule, also in an instance that got
// some reports before it was asked, and after a reload. The log says so once for each rule.
func TestReportsCountAlsoIfTheyDoNotFit(t *testing.T) {
	const yaml = `
domain: d
descriptors:
  - {key: model, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: shared, value: "x*", share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: bucket, sluice: {limits: [{id: t, algorithm: token_bucket, rate: 10, period: 60s, burst: 10}]}}
  - {key: never, rate_limit: {unit: minute, requests_per_unit: 10}, sluice: {countDenied: false}}
  - {key: own, rate_limit: {unit: minute, requests_per_unit: 1}}
`
	own := func(d *ratelimitv3.RateLimitDescriptor) *ratelimitv3.RateLimitDescriptor {
		d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 10,
			Unit: typev3.RateLimitUnit_MINUTE}
		return d
	}
	same := func(d *ratelimitv3.RateLimitDescriptor) *ratelimitv3.RateLimitDescriptor { return d }
	for _, test := range []struct {
		entry string
		with  func(*ratelimitv3.RateLimitDescriptor) *ratelimitv3.RateLimitDescriptor
	}{{"model=a", same}, {"quota=a", same}, {"shared=xa", same}, {"bucket=a", same}, {"own=a", own}} {
		t.Run(test.entry, func(t *testing.T) {
			var log bytes.Buffer
			w := newWorld(t, rls.Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, yaml)
			ask := test.with(descriptorWithHits(test.entry, 0))
			report := func(n uint64) *ratelimitv3.RateLimitDescriptor {
				return test.with(descriptorWithHits(test.entry, n))
			}
			w.ask(report(3))
			w.want("ok: ok 7", ask)
			w.want("ok: ok 1", report(6))
			w.want("ok: ok 1", ask)
			w.want("over: over 0", report(4)) // the request is over: nobody hears the answer
			w.want("over: over 0", ask)
			w.load(yaml)
			w.want("over: over 0", ask)
			w.want("over: over 0", report(1))
			if n := strings.Count(log.String(), "countDenied"); n == 0 || strings.Count(log.String(), "\n") != 1 {
				t.Errorf("the log does not name the setting in one line:\n%s", &log)
			}
		})
	}
	w := newWorld(t, rls.Config{}, yaml)
	w.want("ok: ok 10", descriptorWithHits("never=a", 0))
	w.want("over: over 0", descriptorWithHits("never=a", 11))
	w.want("ok: ok 10", descriptorWithHits("never=a", 0))
	w.want("over: over 0", descriptorWithHits("model=a", 11)) // no request asks first: denied hits do not count
	w.want("ok: ok 0", descriptorWithHits("model=a", 10))
}
