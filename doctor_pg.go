//go:build pg

package main

import (
	"cmp"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/doctor"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord/pg"
)

// doctorConns is how many connections the doctor takes each way, beside one that listens.
const doctorConns = 4

// checks are those of this build. Nothing connects yet.
func (c *Config) checks(a app.Config, keks []string) ([]doctor.Check, func(), error) {
	work, err := pg.OpenDB(c.DatabaseURL, doctorConns)
	if err != nil {
		return nil, nil, unusable("TANDEM_DATABASE_URL", c.DatabaseURL, err)
	}
	listen := cmp.Or(c.ListenURL, c.DatabaseURL)
	direct, err := pg.OpenDB(listen, doctorConns)
	if err != nil {
		_ = work.Close()
		return nil, nil, unusable("TANDEM_LISTEN_URL", listen, err)
	}
	shared := pg.Diagnosis{DB: work, ListenURL: listen}
	list := []doctor.Check{doctor.Driver(true, "PostgreSQL, for any number of replicas on any number of machines", "")}
	list = append(list, doctor.Postgres{
		Work: work.DB, Direct: direct.DB, Hear: shared.Hear, Members: shared.Members,
		// One listens, and two migrate as a replica starts.
		Conns: c.DatabaseConns + pg.OtherConns, Beside: 1 + 2,
	}.Checks()...)
	list = append(list, doctor.Replicas(shared.Members, a.Version), doctor.Leaders(shared.Leaders),
		doctor.Jobs(store.New(store.Options{Write: work}).Jobs, shared.Members, a.JobPeriods()), doctor.Keys(work.DB, keks))
	return list, func() {
		_ = work.Close()
		_ = direct.Close()
	}, nil
}
