package pg_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/internal/testenv"
)

// Names hold what means something to SQL, to LIKE or to the query builder, and
// payloads every byte; a database may be set up to read backslashes as escapes.
func TestTextIsData(t *testing.T) {
	url := testenv.NewDatabase(t, "coord_live", migrate)
	db := admin(t, url)
	exec(t, db, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET standard_conforming_strings = off', current_database()); END $$`)
	b := replica(t, url, time.Hour)
	payload := make([]byte, 256)
	for i := range payload {
		payload[i] = byte(i)
	}
	names := []string{
		`\`, `'`, `\'`, `\'); DELETE FROM coord_topics; --`, `''`, `\\`, `\x41`, `a\nb`, `?`, `?0`, `??`, `?::text`, `\?`, `%`, `_`,
		`a%_b`, `$1`, `$$`, `"`, `--`, `/*`, `{}`, `{"a"}`, `NULL`, ` `, `é`, `👩‍💻`, "\u202e", "\ufffd",
	}
	for i, name := range names {
		// Alone and together with others, where every value is an argument of one statement.
		events := []coord.NewEvent{{Topic: name, Kind: name, Payload: payload}, {Topic: fmt.Sprint(i), Kind: name}, {Topic: name, Kind: name}}
		if _, err := b.Broadcaster().Publish(t.Context(), events...); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		got, err := b.Broadcaster().Read(t.Context(), name, coord.Start, 10)
		if err != nil || len(got) != 2 || got[0].Topic != name || got[0].Kind != name || !bytes.Equal(got[0].Payload, payload) {
			t.Errorf("%q: %v, %v", name, got, err)
		}
		if heads, err := b.Broadcaster().Heads(t.Context(), name); err != nil || heads[name].Seq != 2 {
			t.Errorf("%q: %v, %v", name, heads, err)
		}
		task := coord.Task{Name: name, Kind: name, Payload: payload, Overlap: coord.OverlapAllow}
		if _, err := b.Claimer().PutTask(t.Context(), task); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		run, err := b.Claimer().Trigger(t.Context(), name, name)
		if err != nil || run.Kind != name || run.UniqueKey != name || !bytes.Equal(run.Payload, payload) {
			t.Errorf("%q: %+v, %v", name, run, err)
		}
		claims, err := b.Claimer().Claim(t.Context(), coord.ClaimOptions{Worker: name, Kinds: []string{"x", name}, Limit: 5, Lease: time.Minute})
		if err != nil || len(claims) != 1 || claims[0].Run.Worker != name {
			t.Fatalf("%q: %v, %v", name, claims, err)
		}
		err = b.Claimer().Finish(t.Context(), coord.Result{Claim: claims[0], Outcome: coord.GiveUp, Error: name + "\x00" + string(payload)})
		if err != nil {
			t.Errorf("%q: %v", name, err)
		}
		runs, err := b.Claimer().Enqueue(t.Context(), coord.NewRun{Kind: "never", UniqueKey: name}, coord.NewRun{Kind: "never", UniqueKey: name})
		if err != nil || len(runs) != 2 || runs[0].Duplicate || !runs[1].Duplicate || runs[0].ID != runs[1].ID {
			t.Errorf("%q: %v, %v", name, runs, err)
		}
		ticket, err := b.Tickets().Issue(t.Context(), coord.TicketFor{Purpose: name, User: name, Session: name, Origin: name, Scope: name})
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		use := coord.TicketUse{Purpose: name, Origin: name, Scope: name}
		if f, err := b.Tickets().Redeem(t.Context(), ticket.Secret, use); err != nil || f.User != name || f.Session != name {
			t.Errorf("%q: %+v, %v", name, f, err)
		}
		if _, err := b.Broadcaster().Trim(t.Context(), coord.EventRetention{Prefix: name, Keep: 5}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}
