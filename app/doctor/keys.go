package doctor

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
)

// sealedKey is a key of a ring that is in use, or will be.
type sealedKey struct {
	name     string // of the ring, and the version
	sealedBy string // "": it is not
}

// Keys looks under what the shared keys are sealed. keks are the ids of the key-encryption
// keys that a replica is given.
func Keys(db *sql.DB, keks []string) Check {
	return Check{Name: "keys", Vital: true, Needs: "database", Look: func(ctx context.Context) (Finding, error) {
		keys, err := readKeys(ctx, db)
		if err != nil && !noTable(err) { // before the first replica there is none
			return Finding{}, err
		}
		return judgeKeys(keys, keks), nil
	}}
}

func readKeys(ctx context.Context, db *sql.DB) (keys []sealedKey, err error) {
	rows, err := db.QueryContext(ctx, `SELECT ring, version, sealed_by FROM coord_keys WHERE state <> 'retired' ORDER BY ring, version`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var ring, sealedBy string
		var version int64
		if err := rows.Scan(&ring, &version, &sealedBy); err != nil {
			return nil, err
		}
		keys = append(keys, sealedKey{fmt.Sprintf("%s %d", ring, version), sealedBy})
	}
	return keys, rows.Err()
}

func judgeKeys(keys []sealedKey, keks []string) Finding {
	var plain, foreign []string
	for _, k := range keys {
		switch {
		case k.sealedBy == "":
			plain = append(plain, k.name)
		case !slices.Contains(keks, k.sealedBy):
			foreign = append(foreign, k.name+" by "+k.sealedBy)
		}
	}
	var list []Finding
	if len(foreign) > 0 {
		list = append(list, unsafe("give every replica the same TANDEM_KEY_ENCRYPTION_KEY, the old ones behind the new one",
			"keys are sealed by what these settings lack, so that no replica starts with them: %s", strings.Join(foreign, ", ")))
	}
	if len(plain) > 0 {
		list = append(list, warning("set TANDEM_KEY_ENCRYPTION_KEY, see tandem keys",
			"keys are not sealed, and a copy of the database is one of them: %s", strings.Join(plain, ", ")))
	}
	if len(keys) == 0 {
		return fine("there are none yet")
	}
	return together(fine("all %d are sealed by what these settings have", len(keys)), list...)
}
