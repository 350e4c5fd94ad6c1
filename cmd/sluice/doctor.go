package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicelimits/sluice/internal/configfile"
	"github.com/sluicelimits/sluice/internal/dev/doctor"
	"github.com/sluicelimits/sluice/internal/request/loopback"
)

const doctorLong = `Check what Sluice assumes about API Gateway and AWS's documentation leaves open. For each
assumption, the command prints whether it holds, what it saw, and what to do. It changes nothing. See
docs/assumptions.md.

URL is a route of the API behind the authorizer (wss://… for a WebSocket API). It gets one GET without
a credential. With --key-file and --charge N, up to N GETs carry the key, until two are denied, and
each is charged to the key's tenant: use a test tenant with a small limit.

The exit status is 1 if an assumption does not hold, 2 for a wrong command line, and 6 if no
assumption could be checked.`

const doctorExample = `  sluice doctor https://abc.execute-api.eu-west-1.amazonaws.com/v1 --key-file key.txt --charge 10
  sluice doctor wss://def.execute-api.eu-west-1.amazonaws.com/v1 --json`

// keyVariable is the environment variable with the API key if --key-file is not given.
const keyVariable = "SLUICE_KEY"

// doctorFlags is the command line of doctor.
type doctorFlags struct {
	keyFile string
	charge  int
	json    bool
}

func newDoctorCommand() *cobra.Command {
	var f doctorFlags
	c := &cobra.Command{
		Use: "doctor URL", Short: "Check Sluice's assumptions about API Gateway against an API",
		Long: doctorLong, Example: doctorExample,
		RunE: func(c *cobra.Command, args []string) error { return f.run(c, args) },
	}
	flags := c.Flags()
	flags.StringVar(&f.keyFile, "key-file", "",
		"`FILE` whose first line is an API key (default: the key in "+keyVariable+")")
	numberFlag(flags, &f.charge, "charge", 0, 0, 1000, "make up to `N` calls with the key, charged to its tenant")
	flags.BoolVar(&f.json, "json", false, "print one JSON document")
	return c
}

// diagnosis is an assumption and the finding about it, as --json prints them.
type diagnosis struct {
	ID         string `json:"id"`
	Assumption string `json:"assumption"`
	doctor.Finding
}

func (f *doctorFlags) run(c *cobra.Command, args []string) error {
	calls, err := f.call(c, args[0])
	if err != nil {
		return err
	}
	var all []diagnosis
	found := map[doctor.Result]int{}
	for _, a := range doctor.Assumptions() {
		d := diagnosis{a.ID, a.Says, a.Check(calls)}
		all, found[d.Result] = append(all, d), found[d.Result]+1
	}
	if f.json {
		err = writeJSON(c.OutOrStdout(), map[string]any{"checks": all})
	} else {
		err = writeDiagnoses(c.OutOrStdout(), all, found)
	}
	if n := found[doctor.DoesNotHold]; err == nil && n > 0 {
		err = fmt.Errorf("assumptions that do not hold: %d", n)
	}
	if err == nil && found[doctor.CouldNotTell] == len(all) {
		err = errUnchecked
	}
	return err
}

var errUnchecked = errors.New("no assumption could be checked: the line do: of each says what its check needs")

func writeDiagnoses(w io.Writer, all []diagnosis, found map[doctor.Result]int) error {
	for _, d := range all {
		fmt.Fprintf(w, "%-15s %s\n", d.Result, d.ID)
		fmt.Fprintf(w, "%16s%s\n%16ssaw: %s\n", "", d.Assumption, "", shown(d.Saw))
		if d.Do != "" {
			fmt.Fprintf(w, "%16sdo:  %s\n", "", shown(d.Do))
		}
	}
	_, err := fmt.Fprintf(w, "%d assumptions: %d hold, %d do not hold, %d could not be checked\n",
		len(all), found[doctor.Holds], found[doctor.DoesNotHold], found[doctor.CouldNotTell])
	return err
}

// call calls the API.
func (f *doctorFlags) call(c *cobra.Command, text string) (*doctor.Calls, error) {
	to, err := apiURL(text)
	if err != nil {
		return nil, usage(err)
	}
	key, err := f.key()
	if err != nil {
		return nil, err
	}
	return doctor.Call(c.Context(), caller(), to, key, f.charge), nil
}

// caller returns the client that calls the API. It follows no redirect, so that the key is sent to the given URL only.
func caller() *http.Client {
	return &http.Client{
		Timeout:       30 * time.Second, // API Gateway answers within 29 seconds
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// apiURL parses the URL of a route. It accepts plain HTTP for this machine only, so that no key is sent unencrypted.
func apiURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.Fragment != "":
	case u.Scheme == "https", u.Scheme == "wss", loopback.Host(u.Hostname()) &&
		(u.Scheme == "http" || u.Scheme == "ws"):
		return u, nil
	}
	const want = "https://abc.execute-api.eu-west-1.amazonaws.com/v1/orders"
	return nil, fmt.Errorf("%.200q: want the URL of a route, such as %s (wss for a WebSocket API; http only for this "+
		"machine)", text, want)
}

// key reads the API key from --key-file or from the environment. It returns "" if neither has one.
func (f *doctorFlags) key() (string, error) {
	if f.keyFile == "" {
		return os.Getenv(keyVariable), nil
	}
	text, err := os.ReadFile(f.keyFile)
	if err != nil {
		return "", fmt.Errorf("--key-file %s: %w", f.keyFile, configfile.Advise(err))
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line = strings.TrimSpace(line); line == "" {
		return "", fmt.Errorf("--key-file %s: the first line is empty; want an API key there", f.keyFile)
	}
	return line, nil
}
