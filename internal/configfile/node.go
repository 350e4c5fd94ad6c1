// Package configfile is the strict reader of the files that people write: plans, deployments, stages, prices. It reads
// a tree of nodes, each with the place where it was written, and collects every problem of a file in one run.
//
// The tree does not depend on how a file is written. [ParseJSON] makes it from JSON. Package configyaml makes it from
// YAML; it is a package of its own so that what runs in a Lambda function does not link a YAML library.
package configfile

// Node is one value of a file. Nodes may be shared (by aliases of YAML), so they must not be changed.
type Node struct {
	Kind         Kind
	Text         string  // of a scalar: its text without quotes
	Tag          string  // of a scalar: the tag that a YAML file gives it, or "!!merge" for the key <<; else ""
	Line, Column int     // where it begins, from 1; columns count characters
	Content      []*Node // of a list its items; of a mapping key, value, key, value and so on
}

// Kind says what a [Node] is.
type Kind uint8

// The kinds of nodes. All but Mapping and List are scalars.
const (
	Null Kind = iota
	Mapping
	List
	String
	Integer
	Float // a number that is not written as an integer, such as 1.5, 1e3 or .inf
	Boolean
	Timestamp // YAML only: in JSON a time is a String
	Tagged    // YAML only: a scalar with a tag that none of the other kinds has
)

// IsScalar reports whether the node is neither a mapping nor a list.
func (n *Node) IsScalar() bool { return n.Kind != Mapping && n.Kind != List }

// Parser makes the tree of a file's text. A file without a value gives nil, nil. The problem needs no File.
type Parser func(data []byte) (*Node, *Problem)
