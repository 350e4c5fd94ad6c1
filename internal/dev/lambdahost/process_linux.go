package lambdahost

import "syscall"

// dieWithParent ends the process even where this one is killed. The kernel goes by the thread that started it, which
// environment.run keeps as long as the process lives.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
