package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/sluicelimits/sluice/events"
	"github.com/sluicelimits/sluice/internal/aws/executeapi"
	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/admin"
	"github.com/sluicelimits/sluice/internal/control/call"
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/dev"
)

const remoteHelp = `

The command calls the admin endpoint of --endpoint or SLUICE_ENDPOINT, or of the 'sluice dev' on
this machine. A 'sluice dev' needs its token. The command finds the token without flags if the same
user started both; otherwise --token-file names the file with the token. Calls to a deployed
endpoint are signed with the AWS credentials of the environment or profile, and the audit trail
names their identity as the actor. --sign signs calls to this machine, too, for a deployment on
LocalStack. With --json, the output is one JSON document; if the command fails, it is {"error": …}.

The exit status is 1 if the command failed or was refused, 2 for a wrong command line, and 3 if
another operator changed the same thing first.`

// remote holds the flags with which a command calls the admin endpoint.
type remote struct {
	endpoint, region, reason, tokenFile string
	json, yes, signs                    bool
}

// flags adds the flags of every operators' command.
func (r *remote) flags(c *cobra.Command) {
	r.connection(c.Flags())
	c.Flags().BoolVar(&r.json, "json", false, "print one JSON document")
	c.Long += remoteHelp
}

// connection adds the flags that say how the admin endpoint is called.
func (r *remote) connection(f *pflag.FlagSet) {
	f.StringVar(&r.endpoint, "endpoint", "", "`URL` of the admin endpoint (default: SLUICE_ENDPOINT, or "+
		dev.DefaultEndpoint+")")
	f.StringVar(&r.tokenFile, "token-file", "",
		"`FILE` with the token of 'sluice dev' (default: "+dev.TokenFileVariable+", or the file for the endpoint)")
	f.StringVar(&r.region, "region", "", "AWS `REGION` of the endpoint (default: the region in its name, or that of "+
		"the environment)")
	f.BoolVar(&r.signs, "sign", false, "sign calls to this machine, too (default: SLUICE_SIGN)")
}

// writes adds the flags of a command that changes something.
func (r *remote) writes(c *cobra.Command) {
	r.flags(c)
	c.Flags().StringVar(&r.reason, "reason", "", "`WHY` the change is made, for the audit trail (required; on a "+
		"terminal the command asks for it)")
}

// connect returns a client of the admin endpoint.
func (r *remote) connect(c *cobra.Command) (*client.Client, error) {
	to := cmp.Or(r.endpoint, os.Getenv("SLUICE_ENDPOINT"), dev.DefaultEndpoint)
	return r.at(c, to, cmp.Or(r.tokenFile, os.Getenv(dev.TokenFileVariable)))
}

// at returns a client of an endpoint. Calls to this machine carry the token in tokenFile, or, if tokenFile is "", the
// token that a 'sluice dev' left for its user. Other calls are signed with AWS credentials; so are calls to this
// machine with --sign.
func (r *remote) at(c *cobra.Command, endpoint, tokenFile string) (*client.Client, error) {
	signs := r.signs
	if text := os.Getenv("SLUICE_SIGN"); text != "" && !c.Flags().Changed("sign") {
		var err error
		if signs, err = strconv.ParseBool(text); err != nil {
			return nil, &usageError{c.CommandPath(), fmt.Errorf("SLUICE_SIGN is %.20q; want true or false", text)}
		}
	}
	var made *client.Client
	var err error
	if u, bad := url.Parse(endpoint); bad == nil && client.Local(u) && !signs {
		made, err = localClient(u, tokenFile)
	} else {
		made, err = client.New(endpoint, (&signer{region: r.region}).sign)
	}
	if err != nil {
		return nil, &usageError{c.CommandPath(), err}
	}
	return made, nil
}

// why makes sure that there is a reason. On a terminal it asks for it.
func (r *remote) why(c *cobra.Command) error {
	if r.reason == "" && isTerminal(c.InOrStdin()) {
		line, err := askFor(c, "Reason: ")
		if err != nil {
			return err
		}
		r.reason = line
	}
	if r.reason == "" {
		return &usageError{c.CommandPath(), errors.New("--reason is missing: say why you make the change")}
	}
	if err := events.CheckText(r.reason); err != nil {
		return &usageError{c.CommandPath(), fmt.Errorf("--reason: %w", err)}
	}
	return nil
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// askFor prints a question and reads a line of input.
func askFor(c *cobra.Command, question string) (string, error) {
	fmt.Fprint(c.ErrOrStderr(), question)
	line, err := bufio.NewReader(c.InOrStdin()).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return strings.TrimSpace(line), nil
}

// askToConfirm prints a question and returns an error unless the answer is yes.
func askToConfirm(c *cobra.Command, question string) error {
	answer, err := askFor(c, question)
	if err == nil && answer != "y" && answer != "Y" && answer != "yes" {
		err = errors.New("not confirmed; nothing was written")
	}
	return err
}

// operate calls an operation of the admin endpoint, passes its answer to each function of look, and prints it: with
// show, or as JSON.
func operate[Response any](
	c *cobra.Command, r *remote, path string, request any, show func(io.Writer, *Response) error,
	look ...func(*Response),
) error {
	to, err := r.connect(c)
	if err != nil {
		return err
	}
	return operateAt(c, r, to, path, request, show, look...)
}

func operateAt[Response any](
	c *cobra.Command, r *remote, to *client.Client, path string, request any, show func(io.Writer, *Response) error,
	look ...func(*Response),
) error {
	out, err := client.Do[Response](c.Context(), to, path, request)
	if err != nil {
		return r.failed(c, err)
	}
	for _, f := range look {
		f(out)
	}
	if r.json {
		return writeJSON(c.OutOrStdout(), out)
	}
	return show(c.OutOrStdout(), out)
}

// failed returns err. With --json it also prints err as JSON.
func (r *remote) failed(c *cobra.Command, err error) error {
	if !r.json {
		return err
	}
	if failed := writeJSON(c.OutOrStdout(), map[string]any{"error": jsonError(err)}); failed != nil {
		return failed
	}
	return err
}

// jsonError returns an error in the form of --json.
func jsonError(err error) *call.Error {
	var refused *call.Error
	if errors.As(err, &refused) {
		return refused
	}
	return &call.Error{Code: "failed", Message: err.Error()}
}

// printWritten returns a function that prints the version and the actor of a written item, after the text what.
func printWritten(what string) func(io.Writer, *call.Item) error {
	return func(w io.Writer, i *call.Item) error {
		_, err := fmt.Fprintf(w, "%s: version %d, by %s\n", what, i.Version, shown(i.Actor))
		return err
	}
}

// listAll reads all items of a table that are not deleted.
func listAll(
	ctx context.Context, to *client.Client, t control.Table,
) (items []*call.Item, damaged []string, err error) {
	for after := ""; ; {
		page, err := to.List(ctx, &admin.ListRequest{Table: t, After: after})
		if err != nil {
			return nil, nil, err
		}
		for _, i := range page.Items {
			if !i.Deleted {
				items = append(items, i)
			}
		}
		for _, lines := range page.Damaged {
			damaged = append(damaged, strings.Split(lines, "\n")...)
		}
		if after = page.Next; after == "" {
			return items, damaged, nil
		}
	}
}

// listing reads a control table and prints it. row returns the columns of an item; nil leaves the item out.
func listing(c *cobra.Command, r *remote, t control.Table, head string, row func(*call.Item) []string) error {
	to, err := r.connect(c)
	if err != nil {
		return err
	}
	all, damaged, err := listAll(c.Context(), to, t)
	if err != nil {
		return r.failed(c, err)
	}
	rows, items := [][]string{}, []*call.Item{}
	for _, i := range all {
		if cells := row(i); cells != nil {
			rows, items = append(rows, cells), append(items, i)
		}
	}
	if r.json {
		out := map[string]any{"items": items}
		if len(damaged) > 0 {
			out["damaged"] = damaged
		}
		err = writeJSON(c.OutOrStdout(), out)
	} else {
		err = errors.Join(table(c.OutOrStdout(), head, rows), writeDamaged(c.OutOrStdout(), damaged))
	}
	if err == nil && len(damaged) > 0 {
		err = errDamaged
	}
	return err
}

// errDamaged ends a command that has printed everything but what cannot be read.
var errDamaged = errors.New("something in a control table was not written by Sluice and cannot be read: " +
	"docs/runbooks/forged_cell_documents.md says how to write it anew")

// writeDamaged prints a line for each item that cannot be read.
func writeDamaged(w io.Writer, damaged []string) (err error) {
	for _, line := range damaged {
		_, err = fmt.Fprintf(w, "? %s\n", shown(line))
	}
	return err
}

// table prints rows below a head. The columns of head are separated by spaces.
func table(w io.Writer, head string, rows [][]string) error {
	tabs := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tabs, strings.ReplaceAll(head, " ", "\t"))
	for _, cells := range rows {
		for i := range cells {
			cells[i] = cmp.Or(shown(cells[i]), "-")
		}
		fmt.Fprintln(tabs, strings.Join(cells, "\t"))
	}
	return tabs.Flush()
}

// day formats a time for tables: in UTC, to the second; "" for the zero time.
func day(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}

// signer signs calls for API Gateway with the AWS credentials of the environment, which it reads at its first call.
type signer struct {
	region string
	once   sync.Once
	config aws.Config
	err    error
}

func (s *signer) sign(ctx context.Context, r *http.Request, bodyHash string) error {
	s.once.Do(func() { s.config, s.err = awsconfig.LoadDefaultConfig(ctx) })
	if s.err != nil {
		return s.err
	}
	region, err := s.regionFor(r.URL)
	if err != nil {
		return err
	}
	if s.config.Credentials == nil {
		return errors.New("there are no AWS credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and " +
			"AWS_SECRET_ACCESS_KEY")
	}
	credentials, err := s.config.Credentials.Retrieve(ctx)
	if err != nil {
		return fmt.Errorf("AWS credentials: %w", err)
	}
	return v4.NewSigner().SignHTTP(ctx, credentials, r, bodyHash, "execute-api", region, time.Now())
}

func (s *signer) regionFor(u *url.URL) (string, error) {
	if s.region != "" {
		return s.region, nil
	}
	if region := executeapi.Region(u.Hostname()); region != "" {
		return region, nil
	}
	if s.config.Region != "" {
		return s.config.Region, nil
	}
	return "", fmt.Errorf("the region of the endpoint %s is not known: name it with --region", u.Hostname())
}
