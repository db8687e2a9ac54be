package row

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/tandemhq/tandem/coord"
)

// ringPart is what LoadRing reads of a ring: the ring alone, with a key or with a revocation.
type ringPart struct {
	Revision      int64  `bun:"revision"`
	RingChangedAt Time   `bun:"ring_changed_at"`
	ReadAt        Time   `bun:"read_at"`
	Version       int64  `bun:"version"`
	State         string `bun:"state"` // "" when it has no key
	Material      []byte `bun:"material"`
	SealedBy      string `bun:"sealed_by"`
	CreatedAt     Time   `bun:"created_at"`
	ChangedAt     Time   `bun:"changed_at"`
	Number        int64  `bun:"number"` // 0 when it has no revocation
	Token         string `bun:"token"`
	ExpiresAt     Time   `bun:"expires_at"`
}

// LoadRing reads a ring in one statement, of known what has changed. now is the clock that
// decides, for a statement.
func LoadRing(ctx context.Context, db bun.IDB, now any, known coord.Ring) (coord.Ring, error) {
	var rows []ringPart
	err := db.NewRaw(`
		SELECT r.revision, r.changed_at AS ring_changed_at, t.clock AS read_at, COALESCE(k.version, 0) AS version, COALESCE(k.state, '') AS state,
			k.material, COALESCE(k.sealed_by, '') AS sealed_by, k.created_at, k.changed_at, 0 AS number, '' AS token, NULL AS expires_at
		FROM (SELECT ?0 AS clock) AS t CROSS JOIN coord_rings AS r
		LEFT JOIN coord_keys AS k ON k.ring = r.name AND NOT (r.revision = ?2 AND r.changed_at = ?3)
		WHERE r.name = ?1
		UNION ALL
		SELECT r.revision, r.changed_at, t.clock, v.version, '', NULL, '', NULL, NULL, v.number, v.token, v.expires_at
		FROM (SELECT ?0 AS clock) AS t CROSS JOIN coord_rings AS r
		JOIN coord_revocations AS v ON v.ring = r.name AND NOT (r.revision = ?2 AND r.changed_at = ?3)
		WHERE r.name = ?1
		ORDER BY number, version`, now, known.Name, known.Revision, Time{known.ChangedAt}).Scan(ctx, &rows)
	if err != nil {
		return coord.Ring{}, err
	}
	r := coord.Ring{Name: known.Name}
	for i, part := range rows {
		if i == 0 {
			r.ReadAt = part.ReadAt.Time
			if part.Revision == 0 { // somebody has begun to make it
				return r, nil
			}
			r.Revision, r.ChangedAt = part.Revision, part.RingChangedAt.Time
			if r.Revision == known.Revision && r.ChangedAt.Equal(known.ChangedAt) {
				known.ReadAt = r.ReadAt
				return known, nil
			}
		}
		switch {
		case part.State != "":
			r.Keys = append(r.Keys, coord.Key{
				Version: part.Version, State: coord.KeyState(part.State), Material: part.Material, SealedBy: part.SealedBy,
				CreatedAt: part.CreatedAt.Time, ChangedAt: part.ChangedAt.Time,
			})
		case part.Number > 0:
			r.Revocations = append(r.Revocations, coord.Revocation{
				Number: part.Number, Version: part.Version, Token: part.Token, ExpiresAt: part.ExpiresAt.Time,
			})
		}
	}
	return r, nil
}

// ChangeRing changes a ring, which must be locked.
func ChangeRing(ctx context.Context, db bun.IDB, now any, c coord.RingChange) (coord.Ring, error) {
	r, err := LoadRing(ctx, db, now, coord.Ring{Name: c.Ring})
	if err != nil {
		return r, err
	}
	clock := r.ReadAt
	if clock.IsZero() { // of a ring that there is not
		return r, coord.ErrConflict
	}
	if r, err = r.Change(c, clock); err != nil {
		return coord.Ring{}, err
	}
	var keys, revocations Values
	for _, k := range r.Keys {
		keys.Add(`(?, ?, ?, ?, ?, ?, ?)`, r.Name, k.Version, string(k.State), k.Material, k.SealedBy, Time{k.CreatedAt}, Time{k.ChangedAt})
	}
	for _, v := range r.Revocations {
		revocations.Add(`(?, ?, ?, ?, ?)`, r.Name, v.Number, v.Version, v.Token, Time{v.ExpiresAt})
	}
	statements := []struct {
		text string
		args []any
	}{
		{`DELETE FROM coord_keys WHERE ring = ?`, []any{r.Name}},
		{`DELETE FROM coord_revocations WHERE ring = ?`, []any{r.Name}},
		{`UPDATE coord_rings SET revision = ?, changed_at = ? WHERE name = ?`, []any{r.Revision, Time{r.ChangedAt}, r.Name}},
		{`INSERT INTO coord_keys (ring, version, state, material, sealed_by, created_at, changed_at) VALUES ` + keys.String(), keys.Args},
		{`INSERT INTO coord_revocations (ring, number, version, token, expires_at) VALUES ` + revocations.String(), revocations.Args},
	}
	if len(r.Revocations) == 0 {
		statements = statements[:len(statements)-1]
	}
	for _, s := range statements {
		if _, err := db.NewRaw(s.text, s.args...).Exec(ctx); err != nil {
			return coord.Ring{}, err
		}
	}
	return r, nil
}
