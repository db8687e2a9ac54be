//go:build wireinject && memory && !pg

package main

import "github.com/google/wire"

// driverSet opens the memory driver.
var driverSet = wire.NewSet(openDatabase, newBackend, newStore)
