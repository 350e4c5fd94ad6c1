package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

// Certificates holds the certificate of a server and the authorities of its clients, both from files.
// [Certificates.Reload] reads the files again. Create it with [OpenCertificates].
type Certificates struct {
	cert, key, clients, san string
	log                     *slog.Logger
	current                 atomic.Pointer[tls.Config]
	expiry                  atomic.Pointer[time.Time]
	warned                  time.Time // when expiry was last logged
}

// A certificate is renewed before its last expiresSoon. Until it is, the log says so once in each warnEvery.
const expiresSoon, warnEvery = 72 * time.Hour, time.Hour

// OpenCertificates reads a certificate and its key, in PEM. If clients is not "", it is a file of authorities, and only
// clients with a certificate of one of them are admitted (mutual TLS). If san is not "", that certificate must also
// have san, a DNS name or an IP address, among its subject alternative names. If log is nil, it is slog.Default().
func OpenCertificates(cert, key, clients, san string, log *slog.Logger) (*Certificates, error) {
	if log == nil {
		log = slog.Default()
	}
	c := &Certificates{cert: cert, key: key, clients: clients, san: san, log: log}
	if err := c.load(); err != nil {
		return nil, err
	}
	c.warnOfExpiry(time.Now())
	return c, nil
}

func (c *Certificates) load() error {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return fmt.Errorf("certificate %s with key %s: %w", c.cert, c.key, err)
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"},
	}
	if c.clients != "" {
		pem, err := os.ReadFile(c.clients)
		if err != nil {
			return fmt.Errorf("cannot read the authorities of clients: %w", err)
		}
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("authorities of clients: %s has no certificate in PEM", c.clients)
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
		if c.san != "" {
			config.VerifyConnection = func(state tls.ConnectionState) error {
				return state.PeerCertificates[0].VerifyHostname(c.san)
			}
		}
	}
	c.current.Store(config)
	c.expiry.Store(&pair.Leaf.NotAfter)
	return nil
}

// Expiry returns when the certificate in force expires.
func (c *Certificates) Expiry() time.Time { return *c.expiry.Load() }

// Reload reads the files again. If one of them is invalid, the previous certificates stay in force, and the error is
// logged. So is, once an hour, a certificate in force that has expired or soon will. Do not call it twice at once.
func (c *Certificates) Reload() error {
	before := c.Expiry()
	err := c.load()
	if now := c.Expiry(); err == nil && !now.Equal(before) {
		c.warned = time.Time{}
		c.log.Info("certificates reloaded", "file", c.cert, "expires", now.UTC().Format(time.RFC3339))
	}
	if err != nil {
		c.log.Error("certificates not reloaded, the last good ones stay in force", "error", err)
	}
	c.warnOfExpiry(time.Now())
	return err
}

// warnOfExpiry logs if the certificate has expired or soon will.
func (c *Certificates) warnOfExpiry(now time.Time) {
	if left := c.Expiry().Sub(now); left < expiresSoon && now.Sub(c.warned) >= warnEvery {
		c.warned = now
		c.log.Warn("the certificate of the servers has expired or soon will: renew its files, which are read again",
			"file", c.cert, "expires", c.Expiry().UTC().Format(time.RFC3339))
	}
}

// Config returns the configuration of a server. Each new connection uses the certificates that were read last.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			if now := c.current.Load(); now != nil {
				return now, nil
			}
			return nil, errors.New("no certificate")
		}}
}
