package dev

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/devtoken"
)

// When a cell ends, its address is removed from a file for several cells, since another program can listen at that
// address.
func TestDevTokenOfAnEndedCell(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	o, err := newOperators(true, file, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	cells := []*net.TCPAddr{{IP: net.IPv4(127, 0, 0, 1), Port: 9001}, {IP: net.IPv4(127, 0, 0, 1), Port: 9002}}
	for _, at := range cells {
		if err := o.writeToken(at); err != nil {
			t.Fatal(err)
		}
	}
	o.forget(cells[1])
	for i, want := range []string{o.token, ""} {
		if found := devtoken.Open(file, "localhost", uint16(cells[i].Port)); found.Token != want {
			t.Errorf("port %d: the token was found: %t, %v", cells[i].Port, found.Token != "", found.Err)
		}
	}
	o.forgetAll()
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the token file after the end: %v", err)
	}
}

// A process that listens only at an address of the network refuses operators' calls, and does not print how to make
// them.
func TestDevOnTheNetwork(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("XDG_STATE_HOME", folder)
	t.Setenv(TokenFileVariable, "")
	o, err := newOperators(true, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := o.writeToken(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 8080}); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	(&process{operators: o}).greetOperators(&out, nil)
	if text := out.String(); !strings.Contains(text, "operate    off") ||
		!strings.Contains(text, "--listen :8080") {
		t.Errorf("the output is %q", text)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("there are token files: %v, %v", left, err)
	}
}
