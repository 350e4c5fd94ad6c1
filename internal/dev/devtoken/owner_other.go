//go:build !unix

package devtoken

import "io/fs"

// ownerOf never knows the owner: these systems keep permissions in access control lists, which a file inherits from its
// folder.
func ownerOf(fs.FileInfo) (uid int, known bool) { return 0, false }
