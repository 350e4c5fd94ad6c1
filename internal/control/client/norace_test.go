//go:build !race

package client_test

const manyTenants = 10_000
