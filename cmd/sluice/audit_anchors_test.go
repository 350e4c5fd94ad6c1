package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluicelimits/sluice/internal/control/audit"
	"github.com/sluicelimits/sluice/internal/control/embedded"
)

// anchorSigner signs with a key in this process.
type anchorSigner struct{ *ecdsa.PrivateKey }

func (s anchorSigner) Sign(_ context.Context, digest [sha256.Size]byte) ([]byte, error) {
	return ecdsa.SignASN1(rand.Reader, s.PrivateKey, digest[:])
}

// anchoredTrail returns the folder of a trail with an anchor of today, and the file and the bytes of its public key.
func anchoredTrail(t *testing.T) (dir, public string, der []byte) {
	t.Helper()
	dir = trail(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := embedded.Open(filepath.Join(dir, dataTables))
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	archive := audit.NewFolder(filepath.Join(dir, dataArchive))
	c := audit.AnchorConfig{Archive: archive, Tables: tables, Signer: anchorSigner{key}}
	if a, err := audit.WriteAnchor(t.Context(), c); err != nil || !a.Made || a.Heads != 1 {
		t.Fatalf("the anchor is %+v, %v", a, err)
	}
	if der, err = x509.MarshalPKIXPublicKey(&key.PublicKey); err != nil {
		t.Fatal(err)
	}
	public = filepath.Join(t.TempDir(), "anchors.pub")
	if err := os.WriteFile(public, []byte(base64.StdEncoding.EncodeToString(der)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, public, der
}

// Anchors are verified with a key from a file and with a key in KMS. The newest anchor is printed, so that it can be
// given the next time. Another key, or another known anchor, fails the verification.
func TestAuditVerifyAnchors(t *testing.T) {
	dir, public, der := anchoredTrail(t)
	verify := func(args ...string) (string, error) {
		out, _, err := execute(t, "", append([]string{"audit", "verify", "--data", dir}, args...)...)
		return out, err
	}
	out, err := verify("--anchor-key", public)
	known := regexp.MustCompile(`anchors  1, newest valid one: ([\d-]{10}=[0-9a-f]{64})\n`).FindStringSubmatch(out)
	if err != nil || known == nil || strings.Contains(out, "signatures not checked") {
		t.Fatalf("with the key: %v\n%s", err, out)
	}
	if out, err := verify(); err != nil || !strings.Contains(out, "signatures not checked  1") {
		t.Errorf("without a key: %v\n%s", err, out)
	}
	if out, err := verify("--anchor-key", public, "--known-anchor", known[1]); err != nil {
		t.Errorf("with the anchor that it printed: %v\n%s", err, out)
	}
	out, err = verify("--anchor-key", public, "--known-anchor", known[1][:11]+strings.Repeat("0", 64))
	if err == nil || !strings.Contains(out, "broken chain of anchors") {
		t.Errorf("with another known anchor: %v\n%s", err, out)
	}
	_, other, _ := anchoredTrail(t)
	if out, err := verify("--anchor-key", other); err == nil || !strings.Contains(out, "bad signature") {
		t.Errorf("with another key: %v\n%s", err, out)
	}
	if out, err := verify("--anchor-key", other, "--anchor-key", public); err != nil {
		t.Errorf("with two keys: %v\n%s", err, out)
	}
	startKMS(t, der)
	out, err = verify("--anchor-key", "alias/anchors", "--json")
	var got verified
	if failed := json.Unmarshal([]byte(out), &got); err != nil || failed != nil || got.Anchors != 1 ||
		got.LastAnchor != known[1] {
		t.Errorf("with a key in KMS: %v, %v\n%s", err, failed, out)
	}
	if _, err := verify("--anchor-key", "alias/another"); err == nil {
		t.Error("a key that is not in KMS was accepted")
	}
	if _, err := verify("--anchor-key", filepath.Join(dir, "none")); err == nil {
		t.Error("a file that does not exist was accepted as a key")
	}
}

// startKMS starts a stand-in for KMS that returns the public key of alias/anchors.
func startKMS(t *testing.T, der []byte) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct{ KeyId string }
		err := json.NewDecoder(r.Body).Decode(&in)
		if err != nil || in.KeyId != "alias/anchors" || r.Header.Get("X-Amz-Target") != "TrentService.GetPublicKey" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"PublicKey": der})
	}))
	t.Cleanup(server.Close)
	withAWS(t, server.URL)
}

// With a key, an archive without any anchor fails the verification. Wrong days in the flags are usage errors.
func TestAuditVerifyWithoutAnchors(t *testing.T) {
	dir := trail(t)
	_, public, _ := anchoredTrail(t)
	out, _, err := execute(t, "", "audit", "verify", "--data", dir, "--anchor-key", public)
	if err == nil || !regexp.MustCompile(`missing anchor +1 +- +there is no anchor at all`).MatchString(out) {
		t.Errorf("an archive without anchors: %v\n%s", err, out)
	}
	yesterday := time.Now().AddDate(0, 0, -1).UTC().Format(time.DateOnly)
	for _, args := range [][]string{
		{"--known-anchor", yesterday}, {"--known-anchor", "x=" + strings.Repeat("0", 64)}, {"--known-anchor",
			yesterday + "=00"},
		{"--explained", "yesterday"}, {"--explained", "2026-02-30"},
	} {
		captureStderr(t, func() {
			if got := run(append([]string{"audit", "verify", "--data", dir}, args...)); got != exitUsage {
				t.Errorf("%q exits %d, want %d", args, got, exitUsage)
			}
		})
	}
}
