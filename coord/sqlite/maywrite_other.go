//go:build !unix

package sqlite

import (
	"io/fs"
	"os"
)

// mayWrite knows no more than what the file says of itself.
func mayWrite(path string) error {
	file, err := os.Stat(path)
	if err == nil && file.Mode()&0o200 == 0 {
		err = fs.ErrPermission
	}
	return err
}
