// Package outage keeps decisions coming while a store is slow, refuses, fails over or is gone.
//
// [Breaker] stands before the store and stops asking one that keeps failing. [Store] stands before everything else and always
// has an answer: what each limit's OnStoreFailure says.
package outage
