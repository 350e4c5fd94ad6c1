package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluicelimits/sluice/internal/dev/gateway/front"
	"github.com/sluicelimits/sluice/internal/dev/pacepage"
	"github.com/sluicelimits/sluice/internal/request/loopback"
	"github.com/sluicelimits/sluice/internal/server"
	"github.com/sluicelimits/sluice/pacer"
)

// pacePage is the page of a pacer, as flags give it.
type pacePage struct {
	address  string // "": there is no page
	audience string
}

func (g *pacePage) flags(flags *pflag.FlagSet) {
	flags.StringVar(&g.address, "page", "", "serve a page that shows the queue, the rate and the waits at `ADDRESS`, "+
		"such as 127.0.0.1:8081; without a host, 127.0.0.1")
	flags.StringVar(&g.audience, "page-for", "loopback", "who may see the page: `WHO` is loopback or all")
}

// completePage makes shell completion offer the words of --page-for.
func completePage(c *cobra.Command) {
	words := cobra.FixedCompletions([]string{"loopback", "all"}, cobra.ShellCompDirectiveNoFileComp)
	_ = c.RegisterFlagCompletionFunc("page-for", words) // fails only for a flag that does not exist
}

func (g *pacePage) check() error {
	if g.audience != "loopback" && g.audience != "all" {
		return fmt.Errorf("--page-for: %q is not loopback or all", g.audience)
	}
	if g.address == "" {
		return nil
	}
	return server.CheckAddress("--page", g.address, "127.0.0.1:8081")
}

// serve serves the page until the function that it returns is called.
func (g *pacePage) serve(c *cobra.Command, p *pacer.Pacer, about pacepage.About) (stop func(), err error) {
	if g.address == "" {
		return func() {}, nil
	}
	address := g.address
	if host, port, err := net.SplitHostPort(address); err == nil && host == "" {
		address = net.JoinHostPort("127.0.0.1", port)
	}
	listener, err := server.ListenTCP("--page", address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(c.Context())
	w := pacepage.NewWatcher(p, about)
	go w.Run(ctx)
	handler := w.Handler()
	if g.audience == "loopback" {
		handler = onlyDirect(handler)
	}
	serving := front.NewServer(handler, -1, slog.New(slog.DiscardHandler))
	go func() { _ = serving.Serve(listener) }() // it ends when the server is closed
	fmt.Fprintf(c.ErrOrStderr(), "sluice: the page is at %s/\n", baseURL(listener.Addr()))
	return func() {
		cancel()
		_ = serving.Close() // the program is about to end
	}, nil
}

// onlyDirect refuses requests that do not come from a program on this machine.
func onlyDirect(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopback.Direct(r) {
			http.Error(w, "only programs on this machine may see this page; --page-for all shows it to everybody",
				http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}
