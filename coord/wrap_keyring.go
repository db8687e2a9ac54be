package coord

import (
	"context"
	"time"
)

type keyringSeam struct {
	*seam
	driver Keyring
}

func (s keyringSeam) Load(ctx context.Context, known Ring) (r Ring, err error) {
	err = s.do(ctx, "keyring.load", known.Name, 1, known.check(), func() (err error) {
		r, err = s.driver.Load(ctx, known)
		r.complete(known.Name)
		return err
	})
	return r, err
}

func (r Ring) check() error { return text("Ring.Name", r.Name, 1, maxName) }

// complete makes of what a driver has loaded what a ring is promised to be.
func (r *Ring) complete(name string) {
	if r.Revision == 0 {
		*r = Ring{Name: name}
	}
	r.Revocations = r.unexpired()
}

func (s keyringSeam) Changes() (<-chan struct{}, func()) { return s.driver.Changes() }

func (c RingChange) check() error {
	err := invalid(
		text("RingChange.Ring", c.Ring, 1, maxName),
		between("RingChange.Revision", c.Revision, 0, 1<<62),
		c.Revoke.check(),
	)
	for _, k := range c.Keys {
		err = invalid(err,
			between("KeyChange.Version", k.Version, 1, 1<<62),
			oneOf("KeyChange.State", k.State, "", KeyNext, KeyActive, KeyRetiring, KeyRetired),
			text("KeyChange.SealedBy", k.SealedBy, 0, maxName),
		)
		if err == nil && k.Material != nil {
			err = between("len(KeyChange.Material)", len(k.Material), 1, maxMaterial)
		}
	}
	return err
}

func (n NewRevocation) check() error {
	switch {
	case n == NewRevocation{}:
		return nil
	case n.Version != 0 && n.Token != "":
		return fieldError("NewRevocation.Token", "must be empty when a key is revoked")
	case n.Version == 0:
		if err := text("NewRevocation.Token", n.Token, 1, maxName); err != nil {
			return err
		}
	}
	return invalid(
		between("NewRevocation.Version", n.Version, 0, 1<<62),
		span("NewRevocation.Keep", n.Keep, time.Second, maxSpan),
	)
}

var errUnfenced = &InvalidError{Field: "Tx", Reason: "a ring that has keys is changed in one transaction with Tx.Fence"}
