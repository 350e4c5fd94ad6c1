package redis

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// ErrReplica is the error for a server that is not a primary. Its data is old, and it would lose what is charged.
var ErrReplica = errors.New("not a primary: give the primary endpoint")

// replyError is an error by which a server answered a command that dial sent.
type replyError string

// Error returns the server's text.
func (e replyError) Error() string { return string(e) }

// RedisError implements [goredis.Error].
func (replyError) RedisError() {}

// refusals are the beginnings of replies that stay the same until somebody changes the settings of the client or of the
// server: the user, its password or its rights are wrong, the database does not exist, or one of the two is set up as a
// cluster and the other is not.
var refusals = []string{
	"WRONGPASS", "NOAUTH", "NOPERM", "AUTH ", "invalid password", "Client sent AUTH", "DB index is out of range",
	"invalid DB index", "SELECT is not allowed in cluster mode", "This instance has cluster support disabled",
}

// Refused reports whether a server answered that it does not serve this client, and will not until somebody changes the
// settings of one of them. advice says which setting may be wrong; it is "" if the error itself says so. A server that
// cannot be reached, or is loading its data, has not refused.
func Refused(err error) (advice string, refused bool) {
	var remote *net.OpError
	var certificate *tls.CertificateVerificationError
	var noTLS tls.RecordHeaderError
	switch {
	case goredis.HasErrorPrefix(err, "MOVED"):
		return "it is a node of a cluster, and a client without cluster mode reaches a part of the keys only", true
	case errors.As(err, &certificate), errors.Is(err, ErrReplica):
		return "", true
	case errors.As(err, &noTLS):
		return "the server does not speak TLS", true
	case errors.As(err, &remote) && remote.Op == "remote error": // crypto/tls names an alert of the peer so
		return "the server wants a certificate of the client, or does not accept the one that it got", true
	}
	for _, text := range refusals {
		if goredis.HasErrorPrefix(err, text) {
			return "", true
		}
	}
	return "", false
}

// dialTimeout is how long a connection may take to become ready. It is longer than a decision waits: the client dials
// independently of the decisions, so a slow handshake serves later ones.
const dialTimeout = 2 * time.Second

// connectionLifetime is how long a connection is used, give or take a tenth. ElastiCache ends the connections of IAM
// users after 12 hours, even during a call.
const connectionLifetime = 10 * time.Hour

// Options returns the settings of a store's client for one server.
func Options(c Config) *goredis.Options {
	c = c.withDefaults()
	// The context of each call bounds its time more tightly. These bounds must not be shorter than that of any call.
	longest := max(c.Deadline, ledgerDeadline)
	return &goredis.Options{
		Addr:                  c.Addrs[0],
		DB:                    c.Database,
		Dialer:                c.dial,
		DialTimeout:           dialTimeout,
		DialerRetries:         1,
		Protocol:              2, // RESP2: this package needs no pushed messages
		ContextTimeoutEnabled: true,
		ReadTimeout:           longest,
		WriteTimeout:          longest,
		PoolTimeout:           c.Deadline,
		PoolSize:              c.PoolSize,
		PipelinePoolSize:      -1,
		ConnMaxLifetime:       connectionLifetime,
		ConnMaxLifetimeJitter: connectionLifetime / 10,
		// A charge whose reply was lost may have been made, so the client sends nothing twice. See also noRetryCmd.
		MaxRetries:               -1,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// discardLogger keeps the client from writing every failed connection to stderr in a format of its own. The decision
// that needed the connection returns the error.
type discardLogger struct{}

func (discardLogger) Printf(context.Context, string, ...any) {}

var silenced sync.Once

// newClient returns a client of a server, or of a cluster with the same settings for each of its nodes.
func newClient(c Config) goredis.UniversalClient {
	silenced.Do(func() { goredis.SetLogger(discardLogger{}) })
	o := Options(c)
	if !c.Cluster {
		return goredis.NewClient(o)
	}
	return goredis.NewClusterClient(&goredis.ClusterOptions{
		Addrs: c.Addrs, Dialer: o.Dialer, DialTimeout: o.DialTimeout, DialerRetries: o.DialerRetries,
		Protocol:              o.Protocol,
		ContextTimeoutEnabled: o.ContextTimeoutEnabled, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		PoolTimeout: o.PoolTimeout, PoolSize: o.PoolSize, PipelinePoolSize: o.PipelinePoolSize,
		ConnMaxLifetime:       o.ConnMaxLifetime,
		ConnMaxLifetimeJitter: o.ConnMaxLifetimeJitter, MaxRetries: o.MaxRetries,
		DisableIdentity: o.DisableIdentity, MaintNotificationsConfig: o.MaintNotificationsConfig,
		DisableRoutingPolicies: true, // scripts go where their keys are
	})
}

// dial makes a connection that is ready for use: encrypted, authenticated and, unless it is a node of a cluster, to a
// primary. The nodes of a cluster refuse keys that are not theirs by themselves, and replicas refuse all keys.
func (c Config) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	conn := raw
	if err := c.authenticate(ctx, &conn, addr); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: %w", addr, err), raw.Close())
	}
	return conn, nil
}

// authenticate encrypts a connection, authenticates it, and checks that the server is a primary.
func (c Config) authenticate(ctx context.Context, conn *net.Conn, addr string) error {
	if c.TLS != nil {
		conf := c.TLS
		if host, _, err := net.SplitHostPort(addr); err == nil && conf.ServerName == "" && !conf.InsecureSkipVerify {
			conf = conf.Clone()
			conf.ServerName = host
		}
		encrypted := tls.Client(*conn, conf)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			return fmt.Errorf("TLS: %w", err)
		}
		*conn = encrypted
	}
	if c.Credentials == nil && c.Cluster {
		return nil
	}
	by := time.Now().Add(dialTimeout)
	if t, ok := ctx.Deadline(); ok {
		by = t
	}
	if err := (*conn).SetDeadline(by); err != nil {
		return err
	}
	talk := bufio.NewReader(*conn)
	if c.Credentials != nil {
		user, password, err := c.Credentials(ctx)
		if err != nil {
			return fmt.Errorf("credentials: %w", err)
		}
		if user == "" {
			user = "default"
		}
		if _, err := sendCommand(*conn, talk, "AUTH", user, password); err != nil {
			return fmt.Errorf("AUTH as %q: %w", user, err)
		}
	}
	if !c.Cluster {
		role, err := sendCommand(*conn, talk, "ROLE")
		if err != nil {
			return fmt.Errorf("ROLE: %w", err)
		}
		if role != "master" {
			return fmt.Errorf("it is a %.20s: %w", role, ErrReplica)
		}
	}
	if talk.Buffered() > 0 {
		return fmt.Errorf("%w: %d bytes more than were asked for", errMalformedReply, talk.Buffered())
	}
	return (*conn).SetDeadline(time.Time{})
}

// sendCommand sends a command on a connection that nobody else uses yet, and returns the first text of its reply.
func sendCommand(w io.Writer, r *bufio.Reader, args ...string) (string, error) {
	b := append([]byte{'*'}, strconv.Itoa(len(args))+"\r\n"...)
	for _, a := range args {
		b = append(b, '$')
		b = strconv.AppendInt(b, int64(len(a)), 10)
		b = append(append(append(b, "\r\n"...), a...), "\r\n"...)
	}
	if _, err := w.Write(b); err != nil {
		return "", err
	}
	budget := maxReply
	return firstText(r, &budget, 0)
}

const (
	maxReply = 64 << 10 // bytes, and items of an array, of a reply that firstText reads
	maxDepth = 4
)

// firstText reads one RESP2 reply to its end and returns the first text in it.
func firstText(r *bufio.Reader, budget *int, depth int) (string, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return "", err
	}
	if *budget -= len(line); *budget < 0 || depth > maxDepth || len(line) < 3 || line[len(line)-2] != '\r' {
		return "", errMalformedReply
	}
	text := string(line[1 : len(line)-2])
	switch line[0] {
	case '+', ':':
		return text, nil
	case '-':
		return "", replyError(text)
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < -1 || n > *budget {
		return "", errMalformedReply
	}
	switch line[0] {
	case '$':
		return readBulk(r, n, budget)
	case '*':
		head := ""
		for i := range n {
			item, err := firstText(r, budget, depth+1)
			if err != nil {
				return "", err
			}
			if i == 0 {
				head = item
			}
		}
		return head, nil
	}
	return "", errMalformedReply
}

// readBulk reads a text of n bytes. If n is −1, there is none.
func readBulk(r *bufio.Reader, n int, budget *int) (string, error) {
	if n < 0 {
		return "", nil
	}
	*budget -= n
	body := make([]byte, n+2)
	if _, err := io.ReadFull(r, body); err != nil {
		return "", err
	}
	if body[n] != '\r' || body[n+1] != '\n' {
		return "", errMalformedReply
	}
	return string(body[:n]), nil
}
