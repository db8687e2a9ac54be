//go:build !linux

package fault

import (
	"context"
	"fmt"
)

// Disk can't be had here.
type Disk struct{}

// NewDisk fails.
func NewDisk(int64) (*Disk, error) { return nil, fmt.Errorf("mount a disk: %w", ErrPrivilege) }

// Path is where the disk is mounted.
func (*Disk) Path() string { return "" }

// Free is how many bytes of it are free.
func (*Disk) Free() (int64, error) { return 0, ErrPrivilege }

// Fill takes what is free.
func (*Disk) Fill() error { return ErrPrivilege }

// Empty gives back what Fill took.
func (*Disk) Empty() error { return ErrPrivilege }

// Close removes the disk.
func (*Disk) Close() error { return nil }

// Network can't be had here.
type Network struct{}

// NewNetwork fails.
func NewNetwork(context.Context) (*Network, error) {
	return nil, fmt.Errorf("make a network: %w", ErrPrivilege)
}

// Inside is the address of what runs in the network.
func (*Network) Inside() string { return "" }

// Outside is the address of this machine, as seen from the network.
func (*Network) Outside() string { return "" }

// Command returns what to run so that a program runs in the network.
func (*Network) Command(program string, args ...string) []string {
	return append([]string{program}, args...)
}

// Unplug pulls the cable.
func (*Network) Unplug(context.Context) error { return ErrPrivilege }

// Plug puts it back.
func (*Network) Plug(context.Context) error { return ErrPrivilege }

// Close removes the network.
func (*Network) Close() error { return nil }
