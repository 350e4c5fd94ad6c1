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
	"github.com/sluicelimits/sluice/internal/control/client"
	"github.com/sluicelimits/sluice/internal/control/operate"
	"github.com/sluicelimits/sluice/internal/dev"
)

// remoteHelp ends the help of every operators' command.
const remoteHelp = `

docs/operate.md says how the command finds the admin endpoint, and what exit statuses mean.`

// remote holds the flags with which a command calls the admin endpoint.
type remote struct {
	endpoint, region, reason string
	json, yes, signs         bool
}

// flags adds the flags of every operators' command.
func (r *remote) flags(c *cobra.Command) {
	r.connection(c.Flags())
	c.Flags().BoolVar(&r.json, "json", false, "print one JSON document")
	c.Long = cmp.Or(c.Long, c.Short+".") + remoteHelp
}

// connection adds the flags that say how the admin endpoint is called.
func (r *remote) connection(f *pflag.FlagSet) {
	f.StringVar(&r.endpoint, "endpoint", "", "`URL` of the admin endpoint (default: SLUICE_ENDPOINT, or "+
		dev.DefaultEndpoint+")")
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
	return r.at(c, cmp.Or(r.endpoint, os.Getenv("SLUICE_ENDPOINT"), dev.DefaultEndpoint))
}

// at returns a client of an endpoint. Calls to this machine carry the token that a 'sluice dev' left for its user.
// Other calls are signed with AWS credentials; so are calls to this machine with --sign.
func (r *remote) at(c *cobra.Command, endpoint string) (*client.Client, error) {
	signs := r.signs
	if text := os.Getenv("SLUICE_SIGN"); text != "" && !c.Flags().Changed("sign") {
		var err error
		if signs, err = strconv.ParseBool(text); err != nil {
			return nil, usagef("SLUICE_SIGN is %.20q; want true or false", text)
		}
	}
	var made *client.Client
	var err error
	if u, bad := url.Parse(endpoint); bad == nil && client.Local(u) && !signs {
		made, err = dev.Client(u)
	} else {
		made, err = client.New(endpoint, (&signer{region: r.region}).sign)
	}
	if err != nil {
		return nil, usage(err)
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
		return usagef("--reason is missing: say why you make the change")
	}
	if err := events.CheckText(r.reason); err != nil {
		return usagef("--reason: %w", err)
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

// failed returns err. With --json it also prints err as JSON.
func (r *remote) failed(c *cobra.Command, err error) error {
	if !r.json {
		return err
	}
	return errors.Join(writeJSON(c.OutOrStdout(), map[string]any{"error": jsonError(err)}), err)
}

// jsonError returns an error in the form of --json.
func jsonError(err error) *operate.Error {
	var refused *operate.Error
	if errors.As(err, &refused) {
		return refused
	}
	return &operate.Error{Code: "failed", Message: err.Error()}
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
	if region := operate.StageRegion(u.Hostname()); region != "" {
		return region, nil
	}
	if s.config.Region != "" {
		return s.config.Region, nil
	}
	return "", fmt.Errorf("the region of the endpoint %s is not known: name it with --region", u.Hostname())
}
