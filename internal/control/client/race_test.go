//go:build race

package client_test

const manyTenants = 2_000 // the race detector takes ten times as long
