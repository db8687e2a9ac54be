//go:build pg && memory

package main

// A program has one driver. This import can't be resolved, and the error that
// the go command prints says why.
import _ "one driver only: build with -tags pg or with -tags memory, not with both"
