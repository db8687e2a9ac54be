//go:build wireinject

package main

import (
	"context"
	"log/slog"

	"github.com/google/wire"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/tasks"
	"github.com/tandemhq/tandem/web"
)

// initialize makes a replica on a migrated database.
func initialize(ctx context.Context, c *Config, a app.Config, log *slog.Logger) (*app.Server, func(), error) {
	panic(wire.Build(driverSet, migrated, schemaFits, newKeys, app.NewMetrics, app.NewHealth, app.NewAuth, app.NewAudit, app.NewPresence, app.NewTools, app.NewHub, app.NewOutbound,
		app.NewWorker, app.NewJobs, app.NewServer, rooms.New, tasks.New, web.New))
}

// initializeAccounts makes only what it takes to manage accounts.
func initializeAccounts(ctx context.Context, c *Config, a app.Config, first firstUse, log *slog.Logger) (*auth.Service, func(), error) {
	panic(wire.Build(driverSet, fitting, newKeys, app.NewMetrics, app.NewAuth))
}

// initializeKeys makes only what it takes to manage keys.
func initializeKeys(ctx context.Context, c *Config, a app.Config, first firstUse, log *slog.Logger) (*sharedKeys, func(), error) {
	panic(wire.Build(driverSet, fitting, newKeys, app.NewMetrics, wire.Struct(new(sharedKeys), "*")))
}
