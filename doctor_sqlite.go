//go:build !pg && !memory

package main

import (
	"context"
	"os"
	"strings"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/doctor"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord/sqlite"
)

// checks are those of this build. A file that is not there is not made.
func (c *Config) checks(a app.Config, keks []string) ([]doctor.Check, func(), error) {
	list := []doctor.Check{doctor.Driver(false, "SQLite keeps everything in a file of one machine",
		"for several machines use PostgreSQL and the build with -tags pg; several processes on this machine may share the file")}
	if _, err := os.Stat(strings.TrimPrefix(c.DatabaseURL, "sqlite:")); err != nil {
		return append(list, doctor.Missing(err)), func() {}, nil
	}
	db, closeDB, err := openDatabase(context.Background(), c)
	if err != nil {
		return nil, nil, err
	}
	shared := sqlite.Diagnosis{DB: db.DB}
	list = append(list, doctor.SQLite(db.Read.DB)...)
	return append(list, doctor.Replicas(shared.Members, a.Version), doctor.Leaders(shared.Leaders),
		doctor.Jobs(store.New(store.Options{Write: db.Write, Read: db.Read}).Jobs, shared.Members, a.JobPeriods()), doctor.Keys(db.Read.DB, keks)), closeDB, nil
}
