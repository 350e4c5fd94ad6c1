// Package sluice limits what tenants may do: rates and quotas of a plan, exact at any concurrency, all of them or none.
//
// A [Limiter] reads plans, keeps counters in a [Store], and decides. It is a library for any Go program; in front of an
// [net/http.Handler] it is package middleware. Counters are in memory, unless Config.Store is of package redisstore or
// dynamodbstore, which this package does not link: then all processes that share the store hold each limit together.
//
// There are two ways to ask. [Limiter.Decide] is for programs that know who calls. [Limiter.Authorize] finds out by
// itself, from API keys and JWTs. Neither returns an error: whatever goes wrong has an outcome that is defined, and
// that is a denial unless the plan says otherwise. So there is no error branch in which a caller could let everybody
// through.
//
// What a plan can say: https://github.com/sluicelimits/sluice/blob/main/docs/plans.md
package sluice
