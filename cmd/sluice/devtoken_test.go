package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev"
	"github.com/sluicelimits/sluice/internal/dev/devtoken"
)

// behindNginx is a reverse proxy on this machine that behaves like nginx with proxy_pass and no other setting: the Host
// is the address of the upstream, and no header names the client.
func behindNginx(t *testing.T, base string) string {
	t.Helper()
	upstream, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(upstream) }})
	t.Cleanup(proxy.Close)
	return proxy.URL
}

// behindForwarder is a TCP forwarder on this machine, such as "ssh -R" or socat.
func behindForwarder(t *testing.T, base string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // ends when either side closes
		_ = to.Close()
	}
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
			if err != nil {
				_ = in.Close()
				continue
			}
			go pass(in, out)
			go pass(out, in)
		}
	}()
	return "http://" + listener.Addr().String()
}

// operatorsCall posts to an operators' API, with the Authorization header given, if any.
func operatorsCall(t *testing.T, base, path, host, authorization, body string) (status int, answer string) {
	t.Helper()
	url := base + dev.AdminPath + "/" + path
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	r.Header.Set("Content-Type", "application/json")
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// Guarantees that a stranger whom a proxy on the same machine lets through to a dev can neither read nor write through
// the operators' API. Behind such a proxy each call looks local, so only the token identifies operators.
func TestDevBehindAProxy(t *testing.T) {
	t.Parallel()
	r := startDev(t, "--cells", "1")
	cell := dataOf(t, r.base).Cells[0].Name
	for _, way := range []struct{ name, base, host string }{
		{"nginx", behindNginx(t, r.base), "api.example.com"},
		{"a TCP forwarder", behindForwarder(t, r.base), "localhost"},
		{"nobody", r.base, "127.0.0.1"},
	} {
		for path, body := range map[string]string{
			"keys/create":                     `{"tenant":"acme","subject":"intruder","reason":"x"}`,
			"documents/list":                  `{"table":"keys"}`,
			"cells/list":                      `{}`,
			"ops/" + cell + "/counters/reset": `{"tenant":"acme","reason":"x"}`,
			"ops/nowhere/counters/peek":       `{"tenant":"acme"}`,
			"there/is/none":                   `{}`,
		} {
			for _, credential := range []string{"", "Bearer", "Bearer x", "Basic eDp5", "Bearer " + devtoken.New()} {
				status, answer := operatorsCall(t, way.base, path, way.host, credential, body)
				if status != http.StatusUnauthorized || !strings.Contains(answer, `"code":"unauthorized"`) {
					t.Errorf("a stranger behind %s, with the credential %.20q, calls %s: status %d, body %s",
						way.name, credential, path, status, answer)
				}
			}
		}
	}
	if keys := operateOn(t, r.base, "key", "list", "--json"); strings.Contains(keys, "intruder") {
		t.Errorf("the stranger has created a key: %s", keys)
	}
}

// stateOfItsOwn makes the processes of the test keep their tokens in a folder that no other test uses.
func stateOfItsOwn(t *testing.T) (folder string) {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	return filepath.Join(os.Getenv("XDG_STATE_HOME"), "sluice")
}

// tokensIn returns the tokens in a folder, by the names of their files.
func tokensIn(t *testing.T, folder string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	tokens := map[string]string{}
	for _, file := range files {
		token, err := devtoken.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		tokens[file] = token
	}
	return tokens
}

// wantError fails the test unless a command ended with the status, and with each of the texts in its error.
func wantError(t *testing.T, what string, got ran, code int, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if got.code != code || !strings.Contains(got.stderr, text) {
			t.Errorf("%s: exit status %d, %s; want %d and %q", what, got.code, got.stderr, code, text)
		}
	}
}

// Each process has a token of its own, which commands find by themselves. The token is in one file that only its user
// can read, and never in what the process prints or logs. The file is removed at the end.
func TestDevToken(t *testing.T) {
	folder := stateOfItsOwn(t)
	devs := []*running{startDev(t, "--log-level", "debug"), startDev(t, "--log-level", "debug", "--listen", ":0")}
	tokens := tokensIn(t, folder)
	if len(tokens) != len(devs) {
		t.Fatalf("%d token files, want %d: %v", len(tokens), len(devs), tokens)
	}
	for _, r := range devs {
		operateOn(t, r.base, "tenant", "set", "globex", "--override", "{ id: burst, burst: 9 }", "--reason", "a test")
		_, file, _ := strings.Cut(r.stdout.String(), "  token      in the first line of ")
		file, _, _ = strings.Cut(file, ", for curl")
		token := tokens[file]
		if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
			t.Errorf("the token file that the dev prints: %v, %v", info, err)
		}
		for _, at := range devs {
			want := http.StatusUnauthorized
			if at == r {
				want = http.StatusOK
			}
			for _, scheme := range []string{"Bearer ", "bearer "} {
				status, answer := operatorsCall(t, at.base, "cells/list", "localhost", scheme+token, "{}")
				if status != want {
					t.Errorf("the token of %s, sent to %s: status %d, body %s, want %d", r.base, at.base, status,
						answer, want)
				}
			}
		}
	}
	for _, r := range devs {
		if err := r.finish(t); err != nil {
			t.Error(err)
		}
		for _, token := range tokens {
			if strings.Contains(r.stdout.String()+r.stderr.String(), token) {
				t.Errorf("the output contains a token:\n%s%s", r.stdout, r.stderr)
			}
		}
	}
	if left := tokensIn(t, folder); len(left) > 0 {
		t.Errorf("token files that still exist after the end: %v", left)
	}
}

// The address of each cell answers operators, with a file for each cell. No file stays when the cells end.
func TestDevTokenOfCells(t *testing.T) {
	folder := stateOfItsOwn(t)
	r := startDev(t, "--cells", "2")
	for _, cell := range dataOf(t, r.base).Cells {
		operateOn(t, cell.URL, "cell", "list")
	}
	if tokens := tokensIn(t, folder); len(tokens) != 2 {
		t.Errorf("%d token files for 2 cells", len(tokens))
	}
	if err := r.finish(t); err != nil {
		t.Error(err)
	}
	if left := tokensIn(t, folder); len(left) > 0 {
		t.Errorf("token files that still exist after the end: %v", left)
	}
}

// The token file of a killed process does not open the next process at that address, and the next process replaces it.
// The killed process leaves no control tables.
func TestDevTokenOfAKilledProcess(t *testing.T) {
	folder := stateOfItsOwn(t)
	t.Setenv("TMPDIR", t.TempDir())
	p := startProcess(t)
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.done
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 && runtime.GOOS != "windows" {
		t.Errorf("the killed process left control tables: %v, %v", left, err)
	}
	stale := tokensIn(t, folder)
	if len(stale) != 1 {
		t.Fatalf("the killed process left the token files %v, want one", stale)
	}
	next := startDev(t, "--listen", strings.TrimPrefix(p.base, "http://"))
	for file, token := range stale {
		if now := tokensIn(t, folder); len(now) != 1 || now[file] == "" || now[file] == token {
			t.Errorf("the next process has the tokens %v; the killed one had %q", now, token)
		}
	}
	if err := next.finish(t); err != nil || len(tokensIn(t, folder)) != 0 {
		t.Errorf("%v; token files that still exist after the end: %v", err, tokensIn(t, folder))
	}
}

// Guarantees that the operators' API can be turned off while requests and the live page are still served.
func TestDevWithoutOperators(t *testing.T) {
	folder := stateOfItsOwn(t)
	nowhere := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(nowhere, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		state string
		args  []string
		says  string
	}{
		"by the flag":       {folder, []string{"--admin=false"}, "--admin=false"},
		"without a folder":  {nowhere, nil, "XDG_STATE_HOME"}, // that could be made
		"with several data": {folder, []string{"--admin=false", "--data", t.TempDir()}, "--admin=false"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("XDG_STATE_HOME", c.state)
			r := startDev(t, c.args...)
			got := sluice(t, "", "tenant", "list", "--endpoint", r.base+dev.AdminPath)
			wantError(t, "a command", got, exitFailed, "the operators' API of this 'sluice dev' is off", c.says)
			out := r.stdout.String()
			if !strings.Contains(out, "operate    off") || strings.Contains(out, "token    ") {
				t.Errorf("the output is\n%s", out)
			}
			for _, page := range []string{"", "data.json", "healthz"} {
				if code, _, body := get(t, r.base+"/_sluice/"+page, ""); code != http.StatusOK {
					t.Errorf("/_sluice/%s: status %d, body %s", page, code, body)
				}
			}
			if err := r.finish(t); err != nil {
				t.Error(err)
			}
			if tokens := tokensIn(t, folder); len(tokens) > 0 {
				t.Errorf("there are token files: %v", tokens)
			}
		})
	}
}

// Guarantees that a command sends a token only to the process that the token belongs to: not to another address, not to
// a path that a gateway forwards together with its credentials, and not in a signed call.
func TestWhereTheTokenGoes(t *testing.T) {
	folder := stateOfItsOwn(t)
	if err := devtoken.MakeFolder(folder); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "example-secret")
	t.Setenv("AWS_REGION", "eu-west-1")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:9") // no proxy is used for this machine
	var mu sync.Mutex
	var got string
	record := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = r.Header.Get("Authorization")
		http.Redirect(w, r, "http://example.com/", http.StatusTemporaryRedirect)
	})
	theirs, other := httptest.NewServer(record), httptest.NewServer(record)
	defer theirs.Close()
	defer other.Close()
	token := devtoken.New()
	at, err := net.ResolveTCPAddr("tcp", strings.TrimPrefix(theirs.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	own := devtoken.File(folder, at.AddrPort())
	if err := devtoken.Write(own, token); err != nil {
		t.Fatal(err)
	}
	local := strings.Replace(theirs.URL, "127.0.0.1", "localhost", 1)
	for _, c := range []struct {
		endpoint string
		args     []string
		sent     bool
	}{
		{theirs.URL + dev.AdminPath, nil, true},
		{theirs.URL + dev.AdminPath + "/", nil, true},
		{local + dev.AdminPath, nil, true},
		{other.URL + dev.AdminPath, nil, false},
		{theirs.URL, nil, false},
		{theirs.URL + "/api", nil, false},
		{theirs.URL + dev.AdminPath + "istrators", nil, false},
		{theirs.URL + dev.AdminPath + "/../../api", nil, false},
		{theirs.URL + dev.AdminPath, []string{"--sign"}, false},
	} {
		got = ""
		r := sluice(t, "", append([]string{"cell", "list", "--endpoint", c.endpoint}, c.args...)...)
		if r.code == 0 || strings.Contains(r.stderr, token) {
			t.Errorf("%s %q: exit status %d, %s", c.endpoint, c.args, r.code, r.stderr)
		}
		sent := got == "Bearer "+token
		if sent != c.sent || !sent && strings.Contains(got, token) {
			t.Errorf("%s %q: the command sent %q, want the token: %t", c.endpoint, c.args, got, c.sent)
		}
	}
	u, err := url.Parse(local + dev.AdminPath)
	if err != nil {
		t.Fatal(err)
	}
	if sent, _, to := dev.TokenFor(u); sent != token || "http://"+to.Host != theirs.URL {
		t.Errorf("the token for %s goes to %s, want the address at which its process listens: %s", u, to, theirs.URL)
	}
	far := sluice(t, "", "cell", "list", "--endpoint", "http://192.0.2.1/_sluice/admin")
	wantError(t, "another machine", far, exitUsage, "https")
}

// Without a token, or with a wrong one, the error names the file that was read and what to do, also as JSON.
func TestCommandsWithoutAToken(t *testing.T) {
	folder := stateOfItsOwn(t)
	r := startDev(t)
	var file string
	for file = range tokensIn(t, folder) {
	}
	for name, c := range map[string]struct {
		do   func() error
		says string
	}{
		"no file": {func() error { return nil }, "there is no file " + file},
		"no token in it": {func() error { return os.WriteFile(file, []byte("x"), 0o600) },
			file + ": it holds no token"},
		"a file that others can read": {func() error {
			return errors.Join(devtoken.Write(file, devtoken.New()), os.Chmod(file, 0o644))
		}, file + ": other users may read or write it (mode 0644)"},
		"another token": {func() error { return devtoken.Write(file, devtoken.New()) },
			"the process at " + strings.TrimPrefix(r.base, "http://") + " does not accept the token in " + file},
	} {
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{
			{"tenant", "list"}, {"tenant", "suspend", "acme", "--reason", "x"}, {"counter", "peek", "acme"},
			{"plan", "diff", "example.yaml"}, {"tenant", "list", "--json"},
		} {
			got := sluice(t, "", append(args, "--endpoint", r.base+dev.AdminPath)...)
			wantError(t, name+": "+strings.Join(args, " "), got, exitFailed, c.says, "XDG_STATE_HOME")
			if args[len(args)-1] == "--json" && !strings.Contains(got.stdout, `"code": "unauthorized"`) {
				t.Errorf("%s: the error as JSON is %s", name, got.stdout)
			}
		}
	}
}

// Guarantees that the curl command in docs/operate.md works.
func TestCurlOfTheDocs(t *testing.T) {
	folder := stateOfItsOwn(t)
	r := startDev(t)
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "operate.md"))
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile("`curl -H \"Authorization: (.*)\\$\\(head -n 1 FILE\\)\" " +
		"-H 'Content-Type: application/json' -d '(.*)' " + regexp.QuoteMeta(dev.DefaultEndpoint) + "/(\\S+)`").
		FindStringSubmatch(string(page))
	if command == nil {
		t.Fatal("the page shows no curl command")
	}
	for _, token := range tokensIn(t, folder) {
		status, answer := operatorsCall(t, r.base, command[3], "127.0.0.1:8080", command[1]+token, command[2])
		if status != http.StatusOK || !strings.Contains(answer, "globex") {
			t.Errorf("%q is answered with status %d, body %s", command[0], status, answer)
		}
	}
}
