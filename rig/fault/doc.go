// Package fault breaks what replicas stand on, and mends it again: links between them and their
// database, the network of one of them, disks, clocks and sessions of the database.
//
// Links need nothing. A network, a disk or a clock needs Linux and root; without them its
// constructor returns an error that wraps [ErrPrivilege] and says so.
package fault

import "errors"

// ErrPrivilege is in the chain of what fails because the process is not root on Linux.
var ErrPrivilege = errors.New("it takes root on Linux")
