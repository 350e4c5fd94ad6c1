//go:build unix

package endtoend_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/aws/aws-lambda-go/lambda"
	"go.uber.org/goleak"

	"github.com/sluicelimits/sluice/internal/testkit/built"
	"github.com/sluicelimits/sluice/middleware/lambdaproxy"
)

// executable is the path of the authorizer's executable, which differs from the deployed one in the processor only.
var executable string

// functionVar, if set, makes this binary one of the Lambda functions below.
const functionVar = "SLUICE_ENDTOEND_FUNCTION"

// The functions.
const (
	behind = "behind" // the backend of an API, with our wrapper
	open   = "open"   // a backend without the wrapper, which answers every caller
	leaky  = "leaky"  // prints what it receives, as an authorizer must not
)

func TestMain(m *testing.M) {
	switch os.Getenv(functionVar) {
	case behind:
		lambda.Start(lambdaproxy.Wrap(lambdaproxy.HandlerFunc(backendLambda)))
	case open:
		lambda.Start(lambdaproxy.HandlerFunc(func(context.Context, []byte) ([]byte, error) {
			return []byte(`{"statusCode":200,"body":"open"}`), nil
		}))
	case leaky:
		lambda.Start(lambdaproxy.HandlerFunc(func(_ context.Context, event []byte) ([]byte, error) {
			_, err := os.Stdout.Write(append(event, '\n'))
			return []byte(`{}`), err
		}))
	}
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen { // these tests wait for other processes more than they work
		if err := flag.Set("test.parallel", "4"); err != nil {
			panic(err)
		}
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sluice-endtoend-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	executable = filepath.Join(dir, "bootstrap")
	if err := built.Function(executable, "github.com/sluicelimits/sluice/functions/authorizer"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	status := m.Run()
	if status != 0 {
		return status
	}
	// Each test has checked its own lines already. This checks lines written after the end of a test, and lines of one
	// test that contain secrets of another.
	for _, leak := range told.findSecrets() {
		fmt.Fprintln(os.Stderr, "a log line of this run tells "+leak)
		status = 1
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	return status
}
