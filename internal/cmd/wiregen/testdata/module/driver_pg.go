//go:build pg

package main

type pgDriver struct{ place string }

func (*pgDriver) name() string { return "pg" }

func openDriver(c config) (*pgDriver, func(), error) {
	return &pgDriver{c.place}, func() {}, nil
}
