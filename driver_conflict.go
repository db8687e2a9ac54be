//go:build pg && memory

package main

// A program has one driver. The name below does not exist, so that the compiler
// says what is wrong.
var _ = theTagsPgAndMemoryExcludeEachOther_buildWithOneOfThem
