package route_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/plan/route"
	"github.com/sluicelimits/sluice/internal/testkit/soak"
)

// handlers are the patterns of the handlers that each server of TestRealServers has, by name. A handler answers with
// its name.
var handlers = map[string]string{
	"health":  "/health",
	"product": "/product/{id}",
	"reviews": "/product/{id}/reviews",
	"account": "/accounts/{id}",
	"public":  "/accounts/{id}/public",
	"item":    "/{tenant}/items/{item}",
	"files":   "/files/**",
}

// realServers are the servers that the test must have found. docs/plans.md lists them with their versions.
var realServers = []string{
	"aiohttp", "bottle", "django", "express", "express4", "falcon", "fastify", "fastify4", "flask", "go", "hapi",
	"hono", "koa", "nginx", "polka", "restify", "starlette", "tornado",
}

// emptyParameter ends the answer of a handler whose last parameter is empty.
const emptyParameter = " empty"

// realServer is a server of another project, with a handler for each of handlers.
type realServer struct {
	name, version, address string
}

// TestRealServers guarantees, for real servers and paths in random spellings, that no request is served uncounted: if a
// server runs the handler of a pattern, a limit with that pattern counts the request. It also guarantees that declared
// routes keep their promise: a path that passes as one route runs no handler of another, except with an empty last
// segment (see MatchesEveryForm). Requests are written to a connection as they are, so that nothing changes the paths.
func TestRealServers(t *testing.T) {
	servers := startServers(t)
	var paths []string
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for range soak.Times(2000) {
		paths = append(paths, randomPath(random))
	}
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			c := client{server: s}
			defer c.close()
			for handler, pattern := range handlers {
				if got, _, err := c.get(expand(pattern, func() string { return "1" })); got != handler {
					t.Fatalf("%s is served by %q, %v; want %s", pattern, got, err, handler)
				}
			}
			served, failures := 0, 0
			for _, raw := range paths {
				handler, empty, err := c.get(raw)
				if err != nil || handler == "" {
					continue
				}
				served++
				for _, failure := range judge(raw, handler, empty) {
					if failures++; failures <= 5 {
						t.Errorf("%s %s: %s", s.name, s.version, failure)
					}
				}
			}
			t.Logf("%s %s: %d of %d paths served, %d timeouts, %d failures", s.name, s.version, served, len(paths),
				c.timeouts, failures)
			if most := len(paths)/100 + 3; c.timeouts > most {
				t.Errorf("%d requests were not answered in %v; want at most %d", c.timeouts, answerTime, most)
			}
		})
	}
}

// limitOf has the rule of a limit for each handler, in any case, and routeOf that of a declared route.
var limitOf, routeOf = func() (limits, routes map[string]route.Rule) {
	limits, routes = map[string]route.Rule{}, map[string]route.Rule{}
	for handler, text := range handlers {
		p, err := route.ParsePattern(text)
		if err != nil {
			panic(err)
		}
		limits[handler], routes[handler] = route.Rule{Pattern: p.AnyCase()}, route.Rule{Pattern: p}
	}
	return limits, routes
}()

// judge says what is wrong if a server runs the handler for the path.
func judge(raw, handler string, empty bool) (failures []string) {
	sent := raw
	if strings.HasPrefix(raw, "/") {
		sent, _, _ = strings.Cut(raw, "?") // callers of Clean have taken the query off
	}
	path := route.Clean(sent)
	limits := route.NewIndex([]route.Rule{limitOf[handler]})
	if len(limits.Match(nil, http.MethodGet, &path)) == 0 {
		failures = append(failures, fmt.Sprintf("%q is served by the handler of %s, and counted nowhere: forms %q",
			raw, handlers[handler], path.Forms()))
	}
	if empty && strings.HasSuffix(handlers[handler], "}") {
		return failures
	}
	for other, rule := range routeOf {
		declared := route.NewIndex([]route.Rule{rule})
		if !route.Overlap(rule, routeOf[handler]) && declared.MatchesEveryForm(http.MethodGet, &path) {
			failures = append(failures, fmt.Sprintf("%q passes as %s, and is served by the handler of %s: forms %q",
				raw, handlers[other], handlers[handler], path.Forms()))
		}
	}
	return failures
}

// expand puts segments in place of the parameters and the tail of a pattern.
func expand(pattern string, next func() string) string {
	segments := strings.Split(pattern, "/")
	for i, s := range segments {
		if strings.HasPrefix(s, "{") || s == "**" {
			segments[i] = next()
		}
	}
	return strings.Join(segments, "/")
}

// Pieces of odd paths: what can stand for a slash, what can be a segment, and what can come behind and before a path.
var (
	oddSlashes = []string{
		"//", "///", "%2F", "%2f", "%252F", "%5C", `\`, "/./", "/../", "/x/../", "/;/", ";/", "/;a=1/", "%3B/",
		"/%2e/", "/%2e%2e/", "/..;/", "/%2E%2e%2f", "/..%2F", "/%2F", "%2F/", "/%20/", ";%2F",
	}
	oddSegments = []string{
		"", ".", "..", "...", ";", ";a=1", "..;", "..;a", "%2e", "%2E%2e", "%252e%252e", "%", "%zz", "%00", "%3B",
		"%3b.", "%20", "%3F", "%23", "%25", "a;b", "a%2Fb", "a%5Cb", "é", "%C3%A9", "%ff", "*", "{id}", ":id", "+",
	}
	oddEnds = []string{
		"/", "//", "/.", "/..", "/./", "/../", ";", ";/", ";/x", ";a=1", "%3B", "%3B/x", "%3b/../x", ";;", ";?", "?",
		"?a=/b", "?/../x", "#", "#/x", "%23", "%23/x", "%3F", "%3F/x", "%3F/../x", "%00", "%00/x", ".json", "%20",
		"%09", "%0a", "%0D", "%", "%2", "%zz", "%25", "%2F", "%2F/", "%5C", `\`, "\t", "\f", "\xa0", "\xc2\xa0",
		"\x85", "%C2%A0", "%EF%BB%BF", "\xef\xbb\xbf", "&a", "=", "+", ",", ":", "~", "|", "^", "`", `"`, "<", "[",
		"{", "public", "/public", "/reviews",
	}
	oddBegins = []string{
		"/", "//", "//h", "///h", "//h/..", "/.", "/..", "/x/..", "/x/../..", "http://h", "http://h:80", "http://u@h",
		"HTTP://h/", "http://h;", "http://h?", "http://h#", `http://h\`, "https://h", `/\h`, `\`, "/%2F", "/%2e",
		"/%2e%2e", "/;", "/;a", "*", "/%5C", "/%5Ch", "/\t", "\xa0", "http:", "/:", "/http:", "/http://h", ";", "%2F",
		"?", "/?",
	}
)

// randomPath returns a path of a handler in another spelling, or one that resembles it.
func randomPath(random *rand.Rand) string {
	pick := func(from []string) string { return from[random.IntN(len(from))] }
	var patterns []string
	for _, p := range handlers {
		patterns = append(patterns, p)
	}
	slices.Sort(patterns)
	s := expand(pick(patterns), func() string { return pick([]string{"1", "a", "product", "items", "public"}) })
	for range random.IntN(4) + 1 {
		switch random.IntN(9) {
		case 0, 1: // another slash
			if at := nth(s, '/', random); at >= 0 {
				s = s[:at] + pick(oddSlashes) + s[at+1:]
			}
		case 2: // one more segment
			if at := nth(s, '/', random); at >= 0 {
				s = s[:at] + "/" + pick(oddSegments) + s[at:]
			}
		case 3: // a segment that is empty or odd
			if at := nth(s, '/', random); at >= 0 {
				_, after, more := strings.Cut(s[at+1:], "/")
				if s = s[:at+1] + pick(oddSegments); more {
					s += "/" + after
				}
			}
		case 4, 5:
			s += pick(oddEnds)
		case 6:
			s = pick(oddBegins) + s
		case 7: // an escape in place of a byte
			at := random.IntN(len(s) + 1)
			if at < len(s) {
				escape := pick([]string{"%%%02X", "%%%02x", "%%25%02X"})
				s = s[:at] + fmt.Sprintf(escape, s[at]) + s[at+1:]
			}
		case 8: // another case, or a byte in between
			at := random.IntN(len(s) + 1)
			if at < len(s) && 'a' <= s[at] && s[at] <= 'z' {
				s = s[:at] + strings.ToUpper(s[at:at+1]) + s[at+1:]
			} else {
				s = s[:at] + pick(oddEnds) + s[at:]
			}
		}
	}
	return s
}

// nth returns the place of a random occurrence of c in s, or -1.
func nth(s string, c byte, random *rand.Rand) int {
	var at []int
	for i := range len(s) {
		if s[i] == c {
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		return -1
	}
	return at[random.IntN(len(at))]
}

// answerTime is how long the client waits for an answer. A server may take an odd request for an unfinished one.
const answerTime = 2 * time.Second

// client sends requests to one server, over one connection as long as the server keeps it open.
type client struct {
	server   realServer
	conn     net.Conn
	reader   *bufio.Reader
	timeouts int
}

// get requests a path as it is, and returns the handler that served it, or "", and whether the handler's last parameter
// was empty.
func (c *client) get(raw string) (handler string, empty bool, err error) {
	if c.conn == nil {
		conn, err := net.Dial("tcp", c.server.address)
		if err != nil {
			return "", false, err
		}
		c.conn, c.reader = conn, bufio.NewReader(conn)
	}
	defer func() {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.timeouts++
		}
		if err != nil {
			c.close()
		}
	}()
	if err := c.conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return "", false, err
	}
	if _, err := fmt.Fprintf(c.conn, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", raw); err != nil {
		return "", false, err
	}
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return "", false, err
	}
	body, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return "", false, err
	}
	if response.Close {
		c.close()
	}
	handler, empty = strings.CutSuffix(string(body), emptyParameter)
	if _, ok := handlers[handler]; response.StatusCode != http.StatusOK || !ok {
		return "", false, nil
	}
	return handler, empty, nil
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// startServers starts all servers. If SLUICE_SERVERS does not name the folder of scripts/servers, or nginx is missing,
// it skips the test; if REQUIRE_SERVERS is set, it fails the test instead.
func startServers(t *testing.T) []realServer {
	missing := t.Skipf
	if os.Getenv("REQUIRE_SERVERS") != "" {
		missing = t.Fatalf
	}
	folder := os.Getenv("SLUICE_SERVERS")
	if folder == "" {
		missing("no servers: set SLUICE_SERVERS=$(scripts/servers)")
	}
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		if nginx = "/usr/sbin/nginx"; exec.Command(nginx, "-v").Run() != nil {
			missing("no nginx: %v", err)
		}
	}
	names, err := json.Marshal(handlers)
	if err != nil {
		t.Fatal(err)
	}
	node := exec.Command("node", "testdata/servers/server.js", string(names))
	node.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(folder, "node_modules"))
	python := exec.Command(filepath.Join(folder, "bin", "python"), "testdata/servers/server.py", string(names))
	servers := []realServer{startGo(t), startNginx(t, nginx)}
	for _, program := range []struct {
		cmd     *exec.Cmd
		servers int
	}{{node, 9}, {python, 7}} {
		servers = append(servers, start(t, program.cmd, program.servers)...)
	}
	var found []string
	for _, s := range servers {
		found = append(found, s.name)
	}
	if slices.Sort(found); !slices.Equal(found, realServers) {
		t.Fatalf("servers %q, want %q", found, realServers)
	}
	return servers
}

// start runs a program that starts n servers and prints a line "NAME VERSION PORT" for each.
func start(t *testing.T, cmd *exec.Cmd, n int) (servers []realServer) {
	t.Helper()
	var log strings.Builder
	cmd.Stderr = &log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close() // ends the program
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(stdout)
	for range n {
		if !lines.Scan() {
			_ = stdin.Close()
			_ = cmd.Wait()
			t.Fatalf("%s started %d servers, want %d: %s", cmd.Path, len(servers), n, log.String())
		}
		var s realServer
		var port int
		if _, err := fmt.Sscan(lines.Text(), &s.name, &s.version, &port); err != nil {
			t.Fatalf("%s: line %q: %v", cmd.Path, lines.Text(), err)
		}
		s.address = fmt.Sprintf("127.0.0.1:%d", port)
		servers = append(servers, s)
	}
	return servers
}

// startGo starts a server with the mux of the standard library.
func startGo(t *testing.T) realServer {
	mux, second := http.NewServeMux(), http.NewServeMux()
	mux.Handle("/", second) // for patterns that one mux does not take beside the others
	for handler, pattern := range handlers {
		to := mux
		if strings.HasPrefix(pattern, "/{") {
			to = second
		}
		last := ""
		if i := strings.LastIndexByte(pattern, '{'); i >= 0 {
			last = strings.Trim(pattern[i:strings.LastIndexByte(pattern, '}')], "{")
		}
		pattern = "GET " + strings.Replace(pattern, "**", "{rest...}", 1)
		to.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			text := handler
			if last != "" && r.PathValue(last) == "" {
				text += emptyParameter
			}
			_, _ = io.WriteString(w, text)
		})
	}
	listener := listen(t)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: answerTime}
	var done sync.WaitGroup
	done.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		_ = server.Close()
		done.Wait()
	})
	return realServer{"go", runtime.Version(), listener.Addr().String()}
}

func listen(t *testing.T) net.Listener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// startNginx starts nginx with a location for each handler.
func startNginx(t *testing.T, program string) realServer {
	folder := t.TempDir()
	socket := listen(t)
	address := socket.Addr().String()
	_ = socket.Close() // nginx takes the port
	var locations strings.Builder
	for handler, pattern := range handlers {
		expression := regexpOf(pattern)
		fmt.Fprintf(&locations, "location ~ \"^%s$\" { return 200 %s; }\n", expression, handler)
	}
	config := fmt.Sprintf(`daemon off; worker_processes 1; pid %[1]s/pid; error_log %[1]s/log crit;
events { worker_connections 64; }
http { access_log off; default_type text/plain; client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p;
fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s; keepalive_requests 1000000;
server { listen %[2]s;
%[3]s} }`, folder, address, locations.String())
	file := filepath.Join(folder, "nginx.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	version, err := exec.Command(program, "-v").CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-p", folder, "-c", file, "-e", filepath.Join(folder, "log"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	for began := time.Now(); ; runtime.Gosched() {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			break
		}
		if time.Since(began) > 10*time.Second {
			log, _ := os.ReadFile(filepath.Join(folder, "log"))
			t.Fatalf("nginx does not listen: %v %s", err, log)
		}
	}
	_, number, _ := strings.Cut(strings.TrimSpace(string(version)), "/")
	return realServer{"nginx", number, address}
}

// regexpOf returns the regular expression of a pattern.
func regexpOf(pattern string) string {
	segments := strings.Split(pattern, "/")
	for i, s := range segments {
		switch {
		case s == "**":
			segments[i] = ".*"
		case strings.HasPrefix(s, "{"):
			segments[i] = "[^/]+"
		}
	}
	return strings.Join(segments, "/")
}
