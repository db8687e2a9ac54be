//go:build memory

package main

type memoryDriver struct{ place string }

func (*memoryDriver) name() string { return "memory" }

func openDriver(c config) (*memoryDriver, func(), error) {
	return &memoryDriver{c.place}, func() {}, nil
}
