//go:build wireinject && pg

package main

import "github.com/google/wire"

// driverSet opens the pg driver.
var driverSet = wire.NewSet(openDatabase, newBackend, newStore)
