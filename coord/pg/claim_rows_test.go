package pg

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

func TestClaimsOrder(t *testing.T) {
	noon := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	run := func(id int64, state coord.State, priority int, late time.Duration) row.Run {
		return row.Run{ID: id, State: string(state), Priority: priority, DueAt: row.Time{Time: noon.Add(-late)}, Token: id * 10, At: row.Time{Time: noon}}
	}
	claims := claimsOf([]row.Run{
		run(1, coord.Running, 3, time.Hour),
		run(2, coord.Running, 1, 0),
		run(3, coord.Failed, 1, time.Hour),
		run(9, coord.Running, 2, time.Minute),
		run(5, coord.Running, 2, time.Hour),
		run(4, coord.Running, 2, time.Minute),
		run(6, coord.Cancelled, 1, 0),
	})
	var ids []coord.RunID
	for _, c := range claims {
		ids = append(ids, c.Run.ID)
		if c.Token != int64(c.Run.ID)*10 || !c.Run.LeaseUntil.Equal(noon) || c.Run.State != coord.Running || !c.Deadline.IsZero() {
			t.Errorf("the claim is %+v", c)
		}
	}
	if want := []coord.RunID{2, 5, 4, 9, 1}; !slices.Equal(ids, want) {
		t.Errorf("the order is %v, want %v", ids, want)
	}
}

func TestExtended(t *testing.T) {
	noon := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	claim := func(id coord.RunID, token int64) coord.Claim {
		return coord.Claim{Run: coord.Run{ID: id, Kind: "k"}, Token: token, Deadline: noon.AddDate(0, -4, 0)}
	}
	lease := func(id, token int64) leaseRow {
		return leaseRow{ID: id, Token: token, At: row.Time{Time: noon}, CancelRequested: id == 2, Progress: 40, LogLines: 7}
	}
	for _, test := range []struct {
		name       string
		claims     []coord.Claim
		leases     []leaseRow
		held, lost []coord.Claim
	}{
		{"nothing", nil, nil, nil, nil},
		{
			"all, in the order of the claims",
			[]coord.Claim{claim(3, 1), claim(1, 1), claim(2, 5)},
			[]leaseRow{lease(1, 1), lease(2, 5), lease(3, 1)},
			[]coord.Claim{claim(3, 1), claim(1, 1), claim(2, 5)},
			nil,
		},
		{"some", []coord.Claim{claim(1, 1), claim(2, 1)}, []leaseRow{lease(2, 1)}, []coord.Claim{claim(2, 1)}, []coord.Claim{claim(1, 1)}},
		{"none", []coord.Claim{claim(1, 1), claim(2, 1)}, nil, nil, []coord.Claim{claim(1, 1), claim(2, 1)}},
		{
			"an older claim beside the present one",
			[]coord.Claim{claim(1, 1), claim(1, 2)},
			[]leaseRow{lease(1, 2)},
			[]coord.Claim{claim(1, 2)},
			[]coord.Claim{claim(1, 1)},
		},
	} {
		held, err := extended(test.claims, test.leases)
		if len(held) != len(test.held) {
			t.Errorf("%s: held are %v, want %v", test.name, held, test.held)
			continue
		}
		for i, c := range held {
			if c.Run.ID != test.held[i].Run.ID || c.Token != test.held[i].Token || c.Run.Kind != "k" {
				t.Errorf("%s: held are %v, want %v", test.name, held, test.held)
			}
			if c.Run.CancelRequested != (c.Run.ID == 2) || !c.Run.LeaseUntil.Equal(noon) || c.Run.Progress != 40 || c.Run.LogLines != 7 {
				t.Errorf("%s: the claim does not show the present state: %+v", test.name, c)
			}
		}
		lost, ok := errors.AsType[*coord.FencedError](err)
		switch {
		case len(test.lost) == 0 && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case len(test.lost) > 0 && (!ok || !errors.Is(err, coord.ErrFenced) || !reflect.DeepEqual(lost.Claims, test.lost)):
			t.Errorf("%s: %v, want the loss of %v", test.name, err, test.lost)
		}
	}
}
