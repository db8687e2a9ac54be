//go:build pg

package main

import (
	"testing"

	"github.com/uptrace/bun"
)

func (d *database) writer() *bun.DB { return d.work }

// snapshot is of files, of which this build has none.
func snapshot(testing.TB, string) string { return "" }
