// Package envoypeer compares Sluice's rate limit service with envoyproxy/ratelimit itself, whose code runs in the
// same process. Only tests are in it.
//
// The version of envoyproxy/ratelimit is the newest that the Go module proxy serves. It is older than the behaviour
// that package envoyconfig has: a wildcard can stand only at the end, share_threshold says so in its error, and there
// is no metadata. The tests keep to what both have.
package envoypeer
