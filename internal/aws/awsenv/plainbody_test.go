package awsenv_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/sluicelimits/sluice/internal/aws/awsenv"
)

// answersEarly is an HTTP client that closes the body of a request after its last byte was read and before its end was
// seen, as the SDK does when the reply begins early. It then reads on, as net/http does.
type answersEarly struct{ err error }

func (c *answersEarly) Do(r *http.Request) (*http.Response, error) {
	if _, err := io.CopyN(io.Discard, r.Body, r.ContentLength); err != nil {
		return nil, err
	}
	if err := r.Body.Close(); err != nil {
		return nil, err
	}
	_, c.err = io.Copy(io.Discard, r.Body)
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// Guarantees that reading beyond the last byte of a request is no error, although the SDK has closed the request.
func TestReplyBeforeEndOfRequest(t *testing.T) {
	send := func(client func(aws.HTTPClient) aws.HTTPClient) error {
		request, err := smithyhttp.NewStackRequest().(*smithyhttp.Request).SetStream(strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		early := new(answersEarly)
		response, err := client(early).Do(request.Build(t.Context()))
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatal(response, err)
		}
		_ = response.Body.Close()
		return early.err
	}
	err := send(func(c aws.HTTPClient) aws.HTTPClient { return awsenv.PlainBodies{HTTPClient: c} })
	if err != nil {
		t.Errorf("reading on: %v, want no error", err)
	}
	// Without PlainBodies this is an error. If it is not, the SDK has been corrected, and PlainBodies can be deleted.
	if err := send(func(c aws.HTTPClient) aws.HTTPClient { return c }); err == nil {
		t.Error("the SDK has been corrected: delete PlainBodies, here and in the store in DynamoDB")
	}
}
