// Package repotest holds what must be true of the repository as a whole: documented packages, small text files, links
// that lead somewhere, commands in the README that exist, imports that keep to the rules of importlist_test.go. Only
// its tests do anything.
//
// The checks read files in the test's own process. Go's test cache then sees every file and folder they looked at,
// which it would not if git or go list read them.
package repotest
