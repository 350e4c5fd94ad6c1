package lambdahost

import (
	"crypto/rand"
	"fmt"
	"time"
)

// newRequestID returns a random UUID, version 4.
func newRequestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// newTraceID returns the id of a new X-Ray trace that is not sampled.
func newTraceID(now time.Time) string {
	var b [20]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("Root=1-%08x-%x;Parent=%x;Sampled=0", uint32(now.Unix()), b[:12], b[12:])
}
