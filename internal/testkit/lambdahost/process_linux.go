package lambdahost

import "syscall"

// dieWithParent makes the kernel kill the process when this one ends, even if this one is killed. The kernel watches
// the thread that started the process, so environment.run locks that thread as long as the process runs.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
