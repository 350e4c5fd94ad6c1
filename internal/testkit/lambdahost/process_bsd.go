//go:build unix && !linux

package lambdahost

import "syscall"

// dieWithParent does nothing, because these systems cannot end a process together with its parent. If the host is
// killed, a process that polls ends by itself, as its Runtime API is gone. A process that hangs keeps running.
func dieWithParent(*syscall.SysProcAttr) {}
