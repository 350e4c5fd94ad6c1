// Package shared runs the workload of several instances that share a store, as processes on a real Redis or in virtual
// time in one, and judges what they admitted by a log of every decision and arithmetic of its own.
package shared
