package operate_test

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"syscall"
	"testing"

	"github.com/sluicelimits/sluice/internal/control"
	"github.com/sluicelimits/sluice/internal/control/operate"
)

// fullTables are control tables whose disk is full.
type fullTables struct {
	control.Tables

	cause error
}

func (f fullTables) Get(context.Context, control.Table, string) (control.Item, error) {
	return control.Item{}, fmt.Errorf("control tables: %w",
		&fs.PathError{Op: "write", Path: "control.db", Err: f.cause})
}

// Guarantees that a full disk is named as the cause, and no other failure is.
func TestFullDiskIsNamed(t *testing.T) {
	for cause, want := range map[error]string{syscall.ENOSPC: "is full: make room",
		syscall.EDQUOT: "is full: make room",
		syscall.EIO:    "did not answer; try again"} {
		s := operate.NewControl(operate.ControlConfig{Tables: fullTables{cause: cause},
			Log: slog.New(slog.DiscardHandler)})
		_, err := s.RevokeKey(t.Context(), "ann", &operate.KeyRequest{ID: "k", Reason: "x"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", cause, err, want)
		}
	}
}
