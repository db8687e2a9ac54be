//go:build !pg && !memory

package main

import (
	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/doctor"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord/sqlite"
)

// checks are those of this build. The file is only read.
func (c *Config) checks(a app.Config, keks []string) ([]doctor.Check, func(), error) {
	list := []doctor.Check{doctor.Driver(false, "SQLite keeps everything in a file of one machine",
		"for several machines use PostgreSQL and the build with -tags pg; several processes on this machine may share the file")}
	db, err := sqlite.OpenReadOnly(c.path())
	if err != nil {
		return append(list, doctor.Unopened(err)), func() {}, nil
	}
	shared := sqlite.Diagnosis{DB: db}
	list = append(list, doctor.SQLite{DB: db.Read.DB, Journal: shared.Journal, Writable: shared.Writable}.Checks()...)
	return append(list, doctor.Replicas(shared.Members, a.Version), doctor.Leaders(shared.Leaders),
		doctor.Jobs(store.New(store.Options{Write: db.Read}).Jobs, shared.Members, a.JobPeriods()), doctor.Keys(db.Read.DB, keks)), func() { _ = db.Close() }, nil
}
