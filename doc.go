// Package sluice limits what tenants may do by the rates and quotas of their plans. A request is charged to all of its
// limits or to none, and concurrent requests never exceed the bound of a limit. While a shared store does not answer,
// each limit's onStoreFailure decides, and by default limits hold approximately.
//
// A [Limiter] reads plans, keeps counters in a [Store], and decides. It is a library for any Go program. Package
// middleware puts it in front of an [net/http.Handler]. Counters are in the memory of the process, unless Config.Store
// is from package redisstore or dynamodbstore. Then all processes that share the store enforce each limit together.
// This package does not link those two.
//
// There are two ways to ask. [Limiter.Decide] is for programs that know who calls. [Limiter.Authorize] finds out by
// itself, from API keys and JWTs. Neither returns an error: each failure has a defined outcome, which is a denial
// unless the plan says otherwise. A caller therefore has no error branch that could let everybody pass.
//
// What plans can say: https://github.com/sluicelimits/sluice/blob/main/docs/plans.md
package sluice
