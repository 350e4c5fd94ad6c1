package awsenv

import (
	"io"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// plainBodies sends requests with bodies that have the methods Read and Close alone. That works around a defect of the
// AWS SDK, by which a call that AWS has executed can return an error.
//
// net/http reads on after the last byte of a request's body, to see that nothing follows. The SDK (smithy-go 1.28)
// closes the body as soon as the reply begins. If the reply comes before that last read, the read finds a closed body.
// The body's WriteTo, which net/http prefers, then returns io.EOF as an error, where its Read returns io.EOF as the
// end. net/http concludes that the request was not sent whole and closes the connection in the middle of the reply.
type plainBodies struct{ aws.HTTPClient }

// Do replaces the body of the request and sends it.
func (c plainBodies) Do(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		r.Body = struct{ io.ReadCloser }{r.Body}
	}
	return c.HTTPClient.Do(r)
}
