//go:build unix

package lambdahost

import (
	"os/exec"
	"syscall"
)

// setGroup puts the process into a process group of its own, so that signals also reach the processes that it started,
// and ^C in a terminal does not reach it. If this process dies, the kernel continues the frozen ones with SIGHUP, and
// those that poll end, since their Runtime API is gone.
func setGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// The functions below ignore the error of kill: the group has ended then, which environment.run notices by itself.

func signalKill(cmd *exec.Cmd)      { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
func signalTerminate(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
func signalFreeze(cmd *exec.Cmd)    { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGSTOP) }
func signalThaw(cmd *exec.Cmd)      { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGCONT) }
