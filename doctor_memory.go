//go:build memory && !pg

package main

import (
	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/doctor"
)

// checks are those of this build, which keeps nothing that another process could see.
func (c *Config) checks(app.Config, []string) ([]doctor.Check, func(), error) {
	return []doctor.Check{doctor.Driver(false, "this build keeps everything in the memory of one process",
		"use SQLite for one machine, or PostgreSQL and the build with -tags pg for several")}, func() {}, nil
}
