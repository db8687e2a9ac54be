//go:build !pg && !memory

package main

type sqliteDriver struct{ place string }

func (*sqliteDriver) name() string { return "sqlite" }

func openDriver(c config) (*sqliteDriver, func(), error) {
	return &sqliteDriver{c.place}, func() {}, nil
}
