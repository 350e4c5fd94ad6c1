// Package repotest contains only tests. They check the repository as a whole: packages are documented, files are small
// and text, links lead somewhere, commands in the README exist, and imports keep to the rules of importlist_test.go.
//
// The checks read files in the process of the test, so that Go's test cache knows every file and folder that they have
// read. The cache would not know what git or go list read.
package repotest
