package main

import (
	"errors"
	"io"

	"github.com/tandemhq/tandem/app/doctor"
)

// errUnsafe ends the program with exit code 1. What there is to say was said.
var errUnsafe = errors.New("a second replica is not safe")

type doctorCmd struct {
	JSON bool `name:"json" help:"Print JSON, one object per line, the verdict last."`
}

// Run looks at everything and says whether a second replica is safe.
func (d doctorCmd) Run(e *env, c *Config) error {
	if err := c.check(); err != nil {
		return err
	}
	a, err := c.application(io.Discard)
	if err != nil {
		return err
	}
	checks, closeAll, err := c.checks(a, c.kekIDs())
	if err != nil {
		return err
	}
	defer closeAll()
	settings := doctor.Settings(doctor.Config{
		Lease: a.Lease, Poll: a.Poll, DrainGrace: a.DrainGrace, ShutdownTimeout: a.ShutdownTimeout,
		Public: !a.Local(), Proxies: len(a.TrustedProxies),
	})
	results := doctor.Run(e.ctx, append([]doctor.Check{settings}, checks...)...)
	if e.ctx.Err() != nil {
		return errors.New("interrupted: nothing can be said")
	}
	write := doctor.Print
	if d.JSON {
		write = doctor.PrintJSON
	}
	safe, err := write(e.stdout, results)
	if err == nil && !safe {
		return errUnsafe
	}
	return err
}
