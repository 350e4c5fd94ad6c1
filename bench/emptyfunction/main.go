// Command emptyfunction is a Lambda function in Go that does nothing. The authorizer's cold start is compared with its.
package main

import (
	"github.com/aws/aws-lambda-go/lambda"
)

func main() {
	lambda.StartWithOptions(func() error { return nil }, lambda.WithEnableSIGTERM())
}
