package stand

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/sluicelimits/sluice/internal/testkit/apigateway"
	"github.com/sluicelimits/sluice/internal/testkit/apigateway/template"
)

// backendURL is the URL that the integrations of the sample APIs call, as infra/sample has it.
const backendURL = "https://backend.example.com"

// gateways are the local gateways in front of the deployed functions, and the backend of the sample APIs.
type gateways struct {
	control string            // the URL of the control plane's operators' API
	ops     map[string]string // the URL of each cell's operators' API
	api     map[string]string // the URL of each cell's sample API
	servers []*http.Server
	backend *httptest.Server
}

// API returns the URL of a cell's sample API, with the name of its stage and without a slash at the end.
func (s *Stand) API(cell string) string { return s.gateways.api[cell] }

// Ops returns the URL of a cell's operators' API.
func (s *Stand) Ops(cell string) string { return s.gateways.ops[cell] }

// Endpoint returns the URL of the control plane's operators' API, for --endpoint of the command sluice.
func (s *Stand) Endpoint() string { return s.gateways.control }

// serve starts gateways in front of what is deployed now, and stops those of an earlier deployment.
func (s *Stand) serve() error {
	before := s.gateways
	if before == nil {
		before = &gateways{}
	}
	before.close()
	g := &gateways{ops: map[string]string{}, api: map[string]string{}}
	s.gateways = g
	g.backend = httptest.NewServer(http.HandlerFunc(backend))
	control := s.deployed.control
	var err error
	if g.control, err = s.gateway(g, 0, control, "cdk.out", controlStack); err != nil {
		return err
	}
	for i, c := range s.deployed.cells {
		if g.ops[c.ID], err = s.gateway(g, 2*i+1, c.Region, "cdk.out", "sluice-cell-"+c.ID); err != nil {
			return err
		}
		if g.api[c.ID], err = s.gateway(g, 2*i+2, c.Region, "samples.out", "sluice-sample-"+c.ID); err != nil {
			return err
		}
	}
	return nil
}

// gateway serves the API of a stack's template with the functions that are deployed in the region, and returns the
// API's URL. It listens on the n-th of the stand's ports.
func (s *Stand) gateway(g *gateways, n int, region, folder, stack string) (string, error) {
	file := filepath.Join(s.file(folder), stack+".template.json")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	d, err := template.Parse(file, text, template.Options{
		Region: region, Account: s.account, Targets: map[string]string{backendURL: g.backend.URL},
	})
	if err != nil {
		return "", err
	}
	functions := map[string]apigateway.Function{}
	authorizers, integrations := d.Functions()
	for _, name := range append(authorizers, integrations...) {
		functions[name] = s.Function(region, name)
	}
	for _, name := range integrations {
		if d.API, err = s.ownAPI(region, name, d.API); err != nil {
			return "", err
		}
	}
	served, err := apigateway.New(apigateway.Config{
		Description: d, Functions: functions, Log: slog.New(slog.DiscardHandler),
		Callers: map[string]string{s.Operator.Credentials.AccessKeyID: s.Operator.ARN},
	})
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	port := 0
	if s.o.Port != 0 {
		port = s.o.Port + n
	} else if before := s.ports[stack]; before != 0 {
		port = before // so that the URL stays the same when the stand is deployed again
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp",
		net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return "", fmt.Errorf("the gateway of %s: %w", stack, err)
	}
	if at, ok := l.Addr().(*net.TCPAddr); ok {
		s.ports[stack] = at.Port
	}
	server := &http.Server{Handler: served, ReadHeaderTimeout: time.Minute}
	g.servers = append(g.servers, server)
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.logf("the gateway of %s: %v", stack, err)
		}
	}()
	return "http://" + l.Addr().String() + d.Prefix(), nil
}

// ownAPI returns the id of the API in front of a function. A function for operators answers only the API whose id is in
// its environment, which LocalStack chose. For another function, ownAPI returns the given id, which is that of the
// template.
func (s *Stand) ownAPI(region, function, id string) (string, error) {
	out, err := lambda.NewFromConfig(s.AWS(region)).GetFunctionConfiguration(context.Background(),
		&lambda.GetFunctionConfigurationInput{
			FunctionName: &function,
		})
	if err != nil {
		return "", fmt.Errorf("find the API that %s answers: %w", function, err)
	}
	if out.Environment == nil {
		return id, nil
	}
	if own, _, ok := strings.Cut(out.Environment.Variables["SLUICE_API"], "/"); ok {
		return own, nil
	}
	return id, nil
}

// backend is the handler of the backend behind the sample APIs. It answers with the path of the request.
func backend(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"path":`+strconv.Quote(r.URL.Path)+"}\n") //nolint:gosec // sent as JSON
}

func (g *gateways) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, server := range g.servers {
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
	}
	if g.backend != nil {
		g.backend.Close()
	}
}

// Close stops the gateways. The deployment stays.
func (s *Stand) Close() {
	if s.gateways != nil {
		s.gateways.close()
	}
}
