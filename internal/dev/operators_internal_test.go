package dev

import (
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/sluicelimits/sluice/internal/dev/devtoken"
)

// When a cell ends, its file is removed, since another program can listen at its address.
func TestDevTokenOfAnEndedCell(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	o := newOperators(true, slog.New(slog.DiscardHandler))
	cells := []*net.TCPAddr{{IP: net.IPv4(127, 0, 0, 1), Port: 9001}, {IP: net.IPv4(127, 0, 0, 1), Port: 9002}}
	for _, at := range cells {
		o.writeToken(at)
	}
	folder, err := devtoken.Folder()
	if err != nil {
		t.Fatal(err)
	}
	o.forget(cells[1])
	for i, want := range []string{o.token, ""} {
		if found := devtoken.Find(folder, "localhost", uint16(cells[i].Port)); found.Token != want {
			t.Errorf("port %d: the token was found: %t, %v", cells[i].Port, found.Token != "", found.Err)
		}
	}
	o.forgetAll()
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("token files after the end: %v, %v", left, err)
	}
}

// A process that listens only at an address of the network refuses operators' calls, and does not print how to make
// them.
func TestDevOnTheNetwork(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("XDG_STATE_HOME", folder)
	o := newOperators(true, slog.New(slog.DiscardHandler))
	o.writeToken(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 8080})
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
