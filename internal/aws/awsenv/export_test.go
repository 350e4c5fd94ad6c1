package awsenv

// PlainBodies is visible to tests.
type PlainBodies = plainBodies
