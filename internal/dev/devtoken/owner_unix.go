//go:build unix

package devtoken

import (
	"io/fs"
	"syscall"
)

// ownerOf returns the id of the user to whom a file belongs.
func ownerOf(info fs.FileInfo) (uid int, known bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}
