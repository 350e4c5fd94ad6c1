//go:build unix

package lambdahost

import (
	"os/exec"
	"syscall"
)

const canFreeze = true

// setGroup makes the process the head of a group of its own, so that a signal reaches what it started, too. A
// terminal's ^C does not reach it then. If this process dies, the kernel wakes the frozen ones with SIGHUP.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
}

// An error of kill is that the group is gone, which is then known soon.

func signalKill(cmd *exec.Cmd)      { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
func signalTerminate(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
func signalFreeze(cmd *exec.Cmd)    { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGSTOP) }
func signalThaw(cmd *exec.Cmd)      { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGCONT) }
