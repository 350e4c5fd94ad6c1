// Package envoypeer compares Sluice's rate limit service with envoyproxy/ratelimit itself, whose code runs in the
// same process. It contains only tests.
//
// The version of envoyproxy/ratelimit is the newest that the Go module proxy serves. It is older than the behaviour
// that package envoyconfig implements: there, a wildcard can stand only at the end, share_threshold says so in its
// error, and metadata and is_negative_hits are missing. The tests use only what both versions support.
package envoypeer
