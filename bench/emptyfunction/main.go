// Command emptyfunction is the least that a Lambda function in Go is: what the authorizer's cold start is measured
// beside.
package main

import (
	"github.com/aws/aws-lambda-go/lambda"
)

func main() {
	lambda.StartWithOptions(func() error { return nil }, lambda.WithEnableSIGTERM())
}
