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

	"github.com/sluicelimits/sluice/internal/dev/gateway/front"
	"github.com/sluicelimits/sluice/internal/dev/gateway/stage"
	"github.com/sluicelimits/sluice/internal/dev/gateway/template"
	"github.com/sluicelimits/sluice/internal/dev/lambdaremote"
)

// backendURL is what the sample APIs' integrations call, as infra/sample has it.
const backendURL = "https://backend.example.com"

// gateways are the local gateways in front of what is deployed, and the backend of the sample APIs.
type gateways struct {
	control string            // URL of the control plane's operators' API
	ops     map[string]string // by cell: that of its operators' API
	api     map[string]string // by cell: that of its sample API
	servers []*http.Server
	backend *httptest.Server
}

// API is the URL of a cell's sample API, with its stage's name and without a slash at the end.
func (s *Stand) API(cell string) string { return s.gateways.api[cell] }

// Ops is the URL of a cell's operators' API.
func (s *Stand) Ops(cell string) string { return s.gateways.ops[cell] }

// Endpoint is what the operator's command is given as --endpoint.
func (s *Stand) Endpoint() string { return s.gateways.control }

// serve puts the gateways in front of what is deployed now. Those that served before end.
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

// gateway serves the API of a stack's template, whose functions are those deployed in the region, at the nth port of
// the stand's.
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
	functions := map[string]stage.Function{}
	authorizers, integrations := d.Functions()
	config := s.AWS(region)
	config.HTTPClient = nil // calls of functions wait and keep connections as lambdaremote has it
	client := lambdaremote.New(config)
	for _, name := range append(authorizers, integrations...) {
		functions[name] = client.Function(name)
	}
	for _, name := range integrations {
		if d.API, err = s.ownAPI(region, name, d.API); err != nil {
			return "", err
		}
	}
	o := s.Operator
	served, err := stage.New(stage.Config{
		Description: d, Functions: functions, Log: slog.New(slog.DiscardHandler),
		Credentials: map[string]stage.Credential{o.Credentials.AccessKeyID: {
			Secret: o.Credentials.SecretAccessKey, Account: s.account, Caller: o.ID, UserARN: o.ARN,
		}},
	})
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	port := 0
	if s.o.Port != 0 {
		port = s.o.Port + n
	} else if before := s.ports[stack]; before != 0 {
		port = before // the control plane knows the operators' APIs of cells by their URLs
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp",
		net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return "", fmt.Errorf("the gateway of %s: %w", stack, err)
	}
	if at, ok := l.Addr().(*net.TCPAddr); ok {
		s.ports[stack] = at.Port
	}
	server := front.NewServer(served, 0, slog.New(slog.DiscardHandler))
	g.servers = append(g.servers, server)
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.logf("the gateway of %s: %v", stack, err)
		}
	}()
	return "http://" + l.Addr().String() + d.Prefix(), nil
}

// ownAPI is the id that LocalStack gave the API in front of a function for operators, which answers no other one. For
// another function it is the id that the template has.
func (s *Stand) ownAPI(region, function, id string) (string, error) {
	out, err := lambda.NewFromConfig(s.AWS(region)).GetFunctionConfiguration(context.Background(),
		&lambda.GetFunctionConfigurationInput{
			FunctionName: &function,
		})
	if err != nil {
		return "", fmt.Errorf("which API %s answers: %w", function, err)
	}
	if out.Environment == nil {
		return id, nil
	}
	if own, _, ok := strings.Cut(out.Environment.Variables["SLUICE_API"], "/"); ok {
		return own, nil
	}
	return id, nil
}

// backend is what stands behind the sample APIs.
func backend(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"path":`+strconv.Quote(r.URL.Path)+"}\n") //nolint:gosec // JSON, and said to be
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

// Close ends the gateways. What is deployed stays.
func (s *Stand) Close() {
	if s.gateways != nil {
		s.gateways.close()
	}
}
