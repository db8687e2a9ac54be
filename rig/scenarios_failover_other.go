//go:build !linux

package main

// failoverScenarios are about a database that fails over, which runs on Linux only.
func failoverScenarios() []Scenario { return nil }
