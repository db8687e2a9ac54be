package coord

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

type directorySeam struct {
	*seam
	driver Directory
}

func entryData(field string, b []byte) error {
	if len(b) > MaxEntryData {
		return fieldError(field, "has %d bytes, at most %d are allowed", len(b), MaxEntryData)
	}
	return nil
}

func (n *NewMember) complete() error {
	orDefault(&n.Lease, 30*time.Second)
	return invalid(
		text("NewMember.Name", n.Name, 1, maxName),
		span("NewMember.Lease", n.Lease, minLease, maxLease),
		entryData("NewMember.Data", n.Data),
	)
}

// complete leaves no prefix that another one covers, and none is the empty one.
func (f *EntryFilter) complete() error {
	orDefault(&f.Limit, 100)
	bad := invalid(
		between("EntryFilter.Prefixes", len(f.Prefixes), 0, MaxBatch),
		text("EntryFilter.After", f.After, 0, maxName),
		between("EntryFilter.Limit", f.Limit, 1, MaxBatch),
	)
	for _, prefix := range f.Prefixes {
		bad = invalid(bad, text("EntryFilter.Prefixes", prefix, 0, maxName))
	}
	if len(f.Prefixes) == 0 {
		f.Prefixes = []string{""}
		return bad
	}
	var kept []string
	for _, prefix := range slices.Sorted(slices.Values(f.Prefixes)) {
		if len(kept) == 0 || !strings.HasPrefix(prefix, kept[len(kept)-1]) {
			kept = append(kept, prefix)
		}
	}
	f.Prefixes = kept
	return bad
}

func (s directorySeam) Join(ctx context.Context, n NewMember) (m Member, err error) {
	bad := n.complete()
	joined := &memberSeam{seam: s.seam, lease: n.Lease}
	began := time.Now()
	err = s.do(ctx, "directory.join", n.Name, 1, bad, func() (err error) {
		joined.driver, err = s.driver.Join(ctx, n)
		return err
	})
	if err != nil {
		return nil, err
	}
	joined.renewed(began)
	return joined, nil
}

func (s directorySeam) Members(ctx context.Context) (list []MemberInfo, err error) {
	err = s.do(ctx, "directory.members", "", 1, nil, func() (err error) {
		list, err = s.driver.Members(ctx)
		return err
	})
	return list, err
}

func (s directorySeam) Lookup(ctx context.Context, keys ...string) (found map[string]Entry, err error) {
	bad := between("keys", len(keys), 0, MaxBatch)
	for _, key := range keys {
		bad = invalid(bad, text("keys", key, 1, maxName))
	}
	err = s.do(ctx, "directory.lookup", "", len(keys), bad, func() (err error) {
		if len(keys) > 0 {
			found, err = s.driver.Lookup(ctx, keys...)
		}
		return err
	})
	return found, err
}

func (s directorySeam) List(ctx context.Context, f EntryFilter) (list []Entry, err error) {
	bad := f.complete()
	err = s.do(ctx, "directory.list", "", 1, bad, func() (err error) {
		list, err = s.driver.List(ctx, f)
		return err
	})
	return list, err
}

func (s directorySeam) Sweep(ctx context.Context) (swept []Entry, err error) {
	err = s.do(ctx, "directory.sweep", "", 1, nil, func() (err error) {
		swept, err = s.driver.Sweep(ctx)
		return err
	})
	return swept, err
}

func (s directorySeam) Changes() (<-chan struct{}, func()) { return s.driver.Changes() }

type memberSeam struct {
	*seam
	driver   Member
	lease    time.Duration
	deadline atomic.Pointer[time.Time]
}

// renewed notes a renewal that began then; of those that overlap the latest counts.
func (s *memberSeam) renewed(began time.Time) {
	deadline := began.Add(s.lease - min(s.lease/10, 2*time.Second))
	for {
		last := s.deadline.Load()
		if last != nil && !deadline.After(*last) || s.deadline.CompareAndSwap(last, &deadline) {
			return
		}
	}
}

func (s *memberSeam) ID() MemberID { return s.driver.ID() }

func (s *memberSeam) Deadline() time.Time { return *s.deadline.Load() }

func (s *memberSeam) Register(ctx context.Context, key string, data []byte) (r Registration, err error) {
	bad := invalid(text("key", key, 1, maxName), entryData("data", data))
	err = s.do(ctx, "member.register", key, 1, bad, func() (err error) {
		r, err = s.driver.Register(ctx, key, data)
		return err
	})
	return r, err
}

func (s *memberSeam) Update(ctx context.Context, r Registration, data []byte) error {
	bad := invalid(text("Registration.Key", r.Key, 1, maxName), entryData("data", data))
	return s.do(ctx, "member.update", r.Key, 1, bad, func() error { return s.driver.Update(ctx, r, data) })
}

func (s *memberSeam) Deregister(ctx context.Context, rs ...Registration) error {
	key, bad := "", between("registrations", len(rs), 0, MaxBatch)
	for _, r := range rs {
		key, bad = r.Key, invalid(bad, text("Registration.Key", r.Key, 1, maxName))
	}
	if len(rs) != 1 {
		key = ""
	}
	return s.do(ctx, "member.deregister", key, len(rs), bad, func() error {
		if len(rs) == 0 {
			return nil
		}
		return s.driver.Deregister(ctx, rs...)
	})
}

func (s *memberSeam) Renew(ctx context.Context) (lost []Registration, err error) {
	began := time.Now()
	err = s.do(ctx, "member.renew", "", 1, nil, func() (err error) {
		lost, err = s.driver.Renew(ctx)
		return err
	})
	if err == nil {
		s.renewed(began)
	}
	return lost, err
}

func (s *memberSeam) Leave(ctx context.Context) error {
	return s.do(ctx, "member.leave", "", 1, nil, func() error { return s.driver.Leave(ctx) })
}
