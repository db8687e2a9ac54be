//go:build wireinject

package main

import "github.com/google/wire"

func initialize(c config) (*server, func(), error) {
	panic(wire.Build(driverSet, newServer))
}
