package lambdahost

import "os/exec"

func setGroup(*exec.Cmd) {}

func signalKill(cmd *exec.Cmd)      { _ = cmd.Process.Kill() }
func signalTerminate(cmd *exec.Cmd) { _ = cmd.Process.Kill() } // Windows has no SIGTERM
func signalFreeze(*exec.Cmd)        {}                         // Windows cannot stop and continue a process
func signalThaw(*exec.Cmd)          {}
