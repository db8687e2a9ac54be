package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"slices"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/gate"
	"github.com/tandemhq/tandem/coord/internal/row"
)

// lane is where runs of a gate stand that have the same limit.
type lane struct {
	gate  string
	limit int
}

// admitted finds due runs, in order, for which there is a place now. No other claim
// runs beside it, since it holds the writer lock.
//
// What a lane can give is looked at only if its gate has a place, so that many runs
// that wait for one cost nothing.
func (t transaction) admitted(ctx context.Context, o coord.ClaimOptions) ([]row.Run, error) {
	if len(o.Limits) > 0 {
		if err := t.bindKinds(ctx, o); err != nil {
			return nil, err
		}
	}
	taken, err := t.places(ctx)
	if err != nil {
		return nil, err
	}
	limited := func(kind string) bool { return o.Limits[kind] > 0 }
	full := func(kind string) bool { return limited(kind) && taken.ByKind[kind] >= o.Limits[kind] }
	found, err := t.free(ctx, slices.DeleteFunc(slices.Clone(o.Kinds), limited), o.Limit)
	if err != nil {
		return nil, err
	}
	of, err := names(o.Kinds)
	if err != nil {
		return nil, err
	}
	rescued, err := t.runs(ctx, t.prepared.rescue, o.Limit, t.now.UnixMicro(), of)
	if err != nil {
		return nil, err
	}
	found = append(found, rescued...)
	// Each limited kind is looked at by itself: while this claim takes its last places, those of its runs
	// that are left must not hide a run of another kind behind them.
	kinds := [][]string{slices.DeleteFunc(slices.Clone(o.Kinds), limited)}
	for _, kind := range o.Kinds {
		known := slices.ContainsFunc(kinds, func(some []string) bool { return slices.Contains(some, kind) })
		if limited(kind) && !full(kind) && !known {
			kinds = append(kinds, []string{kind})
		}
	}
	var lanes []lane
	err = t.each(ctx, t.prepared.lanes, nil, func(rows *sql.Rows) error {
		var l lane
		err := rows.Scan(&l.gate, into(&l.limit))
		lanes = append(lanes, l)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, l := range lanes {
		most := o.Limit
		if gate.Concurrency(l.gate, l.limit).Key != "" {
			most = min(most, l.limit-taken.ByGate[l.gate])
		}
		if most <= 0 {
			continue
		}
		for _, some := range kinds {
			if of, err = names(some); err != nil {
				return nil, err
			}
			waiting, err := t.runs(ctx, t.prepared.lane, most, t.now.UnixMicro(), of, l.gate, l.limit)
			if err != nil {
				return nil, err
			}
			found = append(found, waiting...)
		}
	}
	return pick(found, o, taken), nil
}

// bindKinds gives due runs of limited kinds a gate.
func (t transaction) bindKinds(ctx context.Context, o coord.ClaimOptions) error {
	of, err := names(o.Kinds)
	if err != nil {
		return err
	}
	var list []string
	for kind := range o.Limits {
		list = append(list, kind)
	}
	limited, err := names(list)
	if err != nil {
		return err
	}
	_, err = t.exec(ctx, t.prepared.bind, t.now.UnixMicro(), of, limited)
	return err
}

// places counts the runs that have one.
func (t transaction) places(ctx context.Context) (gate.Places, error) {
	taken := gate.Places{ByGate: map[string]int{}, ByKind: map[string]int{}}
	err := t.each(ctx, t.prepared.taken, nil, func(rows *sql.Rows) error {
		var at, kind string
		err := rows.Scan(&at, &kind)
		taken.ByGate[at]++
		taken.ByKind[kind]++
		return err
	})
	return taken, err
}

// pick returns those of the runs that may start, in order.
func pick(found []row.Run, o coord.ClaimOptions, taken gate.Places) []row.Run {
	slices.SortFunc(found, func(a, b row.Run) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), a.At.Compare(b.At.Time), cmp.Compare(a.ID, b.ID))
	})
	byID := make(map[int64]row.Run, len(found))
	candidates := make([]gate.Candidate, len(found))
	for i, r := range found {
		byID[r.ID] = r
		running := r.State == string(coord.Running)
		candidates[i] = gate.Candidate{ID: r.ID, Kind: r.Kind, Gate: r.Gate, Limit: r.Limit, Running: running}
	}
	var picked []row.Run
	for _, id := range gate.Pick(candidates, o.Limit, o.Limits, taken) {
		picked = append(picked, byID[id])
	}
	return picked
}
