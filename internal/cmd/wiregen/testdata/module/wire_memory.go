//go:build wireinject && memory

package main

import "github.com/google/wire"

var driverSet = wire.NewSet(openDriver, wire.Bind(new(driver), new(*memoryDriver)))
