//go:build wireinject && !pg && !memory

package main

import "github.com/google/wire"

// driverSet opens the sqlite driver.
var driverSet = wire.NewSet(openDatabase, newBackend, newStore)
