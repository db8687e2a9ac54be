package coord

import (
	"context"
	"slices"
)

type limiterSeam struct {
	*seam
	driver Limiter
}

func (s limiterSeam) Allow(ctx context.Context, l Limit) (d Decision, err error) {
	bad := l.complete()
	err = s.do(ctx, "limiter.allow", l.Key, 1, bad, func() (err error) {
		d, err = s.driver.Allow(ctx, l)
		return err
	})
	return d, err
}

func (s limiterSeam) AllowAll(ctx context.Context, limits ...Limit) (ds []Decision, err error) {
	limits = slices.Clone(limits)
	bad := completeLimits(limits)
	err = s.do(ctx, "limiter.allow_all", "", len(limits), bad, func() (err error) {
		if len(limits) > 0 {
			ds, err = s.driver.AllowAll(ctx, limits...)
		}
		return err
	})
	return ds, err
}

func completeLimits(limits []Limit) error {
	if err := between("limits", len(limits), 0, MaxBatch); err != nil {
		return err
	}
	keys := make(map[string]bool, len(limits))
	for i := range limits {
		if err := limits[i].complete(); err != nil {
			return err
		}
		if keys[limits[i].Key] {
			return fieldError("limits", "name the key %q twice", limits[i].Key)
		}
		keys[limits[i].Key] = true
	}
	return nil
}

func (s limiterSeam) Peek(ctx context.Context, l Limit) (d Decision, err error) {
	bad := l.complete()
	err = s.do(ctx, "limiter.peek", l.Key, 1, bad, func() (err error) {
		d, err = s.driver.Peek(ctx, l)
		return err
	})
	return d, err
}

func (s limiterSeam) Reset(ctx context.Context, key string) error {
	var bad error
	if len(key) == 0 || len(key) > maxKey {
		bad = fieldError("key", "has %d bytes, must have 1 to %d", len(key), maxKey)
	}
	return s.do(ctx, "limiter.reset", key, 1, bad, func() error { return s.driver.Reset(ctx, key) })
}

func (s limiterSeam) Reap(ctx context.Context) (n int, err error) {
	err = s.do(ctx, "limiter.reap", "", 1, nil, func() (err error) {
		n, err = s.driver.Reap(ctx)
		return err
	})
	return n, err
}
