package lambdahost

import "os/exec"

const canFreeze = false

func setGroup(*exec.Cmd) {}

func signalKill(cmd *exec.Cmd)      { _ = cmd.Process.Kill() }
func signalTerminate(cmd *exec.Cmd) { _ = cmd.Process.Kill() } // Windows has no SIGTERM
func signalFreeze(*exec.Cmd)        {}                         // never called, since canFreeze is false
func signalThaw(*exec.Cmd)          {}
