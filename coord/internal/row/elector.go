package row

import "github.com/tandemhq/tandem/coord"

// LeadershipColumns are the columns of a [Leadership].
const LeadershipColumns = `name, epoch, holder, candidate, lease, since, until`

// Leadership is a row of coord_leaders, or what coord_stand returns.
type Leadership struct {
	Name      string `bun:"name"`
	Epoch     int64  `bun:"epoch"`
	Holder    string `bun:"holder"`
	Candidate string `bun:"candidate"`
	Lease     int64  `bun:"lease"`
	Since     Time   `bun:"since"`
	Until     Time   `bun:"until"`
	Mine      bool   `bun:"mine"`
}

// Stored returns the row as a store that decides in Go has it.
func (r Leadership) Stored() coord.StoredLeadership {
	return coord.StoredLeadership{
		Epoch: r.Epoch, Holder: r.Holder, Candidate: r.Candidate, Lease: Duration(r.Lease), Since: r.Since.Time, Until: r.Until.Time,
	}
}

// Coord returns the leadership.
func (r Leadership) Coord() coord.Leadership { return r.Stored().Leadership(r.Name, r.Mine) }

// Leaderships returns the leaderships, in order.
func Leaderships(rows []Leadership) []coord.Leadership {
	list := make([]coord.Leadership, len(rows))
	for i, r := range rows {
		list[i] = r.Coord()
	}
	return list
}
