package pg

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/internal/row"
)

// TestManyKeyedEvents publishes many events with keys at once, of which some were
// published before, and pins that none is compared with all others.
func TestManyKeyedEvents(t *testing.T) {
	conn, plans := explained(t, migrated(t))
	db := bun.NewDB(conn, pgdialect.New())
	const many, topics = 2000, 3
	heads := make(map[string]coord.Position)
	known := make(map[string]coord.Position)
	for _, every := range []int{7, 2, 1} { // each time there are more
		var events []coord.NewEvent
		for i := 0; i < many; i += every {
			events = append(events, coord.NewEvent{Topic: "t" + strconv.Itoa(i%topics), Kind: "k", Key: strconv.Itoa(i)})
		}
		positions, err := publish(t.Context(), db, row.Tagged(events))
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range events {
			want, published := known[e.Key]
			if !published {
				want = coord.Position{Seq: heads[e.Topic].Seq + 1, Tag: positions[i].Tag}
				known[e.Key], heads[e.Topic] = want, want
			}
			if positions[i] != want {
				t.Fatalf("every %d: event %s is at %v, want %v", every, e.Key, positions[i], want)
			}
		}
	}
	for topic, head := range heads {
		events, err := broadcaster{&backend{db: db, route: &route{}}}.Read(t.Context(), topic, coord.Start, many)
		if err != nil || len(events) != int(head.Seq) || events[len(events)-1].Position != head {
			t.Errorf("topic %s has %d events, %v, want up to %v", topic, len(events), err, head)
		}
	}
	all := strings.Join(*plans, "\n")
	for _, found := range regexp.MustCompile(`Rows Removed by (?:Join )?Filter: (\d+)`).FindAllStringSubmatch(all, -1) {
		if n, _ := strconv.Atoi(found[1]); n > many {
			t.Errorf("%d events at once: %s", many, found[0])
		}
	}
	if !strings.Contains(all, "using coord_events_key on coord_events") {
		t.Error("the plans are not there")
	}
}

// Events that were restored from another server may have transactions that are higher
// than all of this one. They are trimmed too, however many younger events there are.
func TestRestoredEventsAreTrimmed(t *testing.T) {
	b := openBackend(t, migrated(t))
	_, err := b.db.ExecContext(t.Context(), `INSERT INTO coord_topics VALUES ('restored', 10, 7, 7), ('new', ?0, 7, 7);
		INSERT INTO coord_events (seq, tag, prev, at, xid, topic, kind, payload)
		SELECT n, 7, 7, now() - interval '2 hours', '1000000000000', 'restored', 'k', '' FROM generate_series(1, 10) AS n;
		INSERT INTO coord_events (seq, tag, prev, at, topic, kind, payload)
		SELECT n, 7, 7, now(), 'new', 'k', '' FROM generate_series(1, ?0) AS n`, 3*reapBatch)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := (broadcaster{b}).Trim(t.Context(), coord.EventRetention{Age: time.Hour}); n != 10 || err != nil {
		t.Errorf("trimmed %d, %v, want 10", n, err)
	}
}

// TestEventPlans pins the plans of what is done with events, with many of them on many
// topics. Those of the functions were made when there was one; trimming has to do
// without statistics and with them.
func TestEventPlans(t *testing.T) {
	conn, plans := explained(t, migrated(t))
	db := bun.NewDB(conn, pgdialect.New())
	b := broadcaster{&backend{db: db}}
	exec := func(statement string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	functions := func() {
		t.Helper()
		for _, key := range []string{"", "key"} {
			_, err := publish(t.Context(), db, row.Tagged([]coord.NewEvent{{Topic: "t1", Kind: "k"}, {Topic: "t2", Kind: "k", Key: key}}))
			if err != nil {
				t.Fatal(err)
			}
		}
		exec(`SELECT count(*) FROM coord_news(pg_snapshot_xmax(pg_current_snapshot()), '{}')`)
	}
	read := regexp.MustCompile(`on coord_events.*actual rows=(\d+) loops=(\d+)`)
	check := func(what string, most int, wants ...string) {
		t.Helper()
		all := strings.Join(*plans, "\n")
		*plans = nil
		for _, want := range wants {
			if !strings.Contains(all, want) {
				t.Errorf("%s: the plans lack %q", what, want)
			}
		}
		if strings.Contains(all, "Seq Scan on coord_events") {
			t.Errorf("%s reads the whole table", what)
		}
		for _, found := range read.FindAllStringSubmatch(all, -1) {
			rows, _ := strconv.Atoi(found[1])
			loops, _ := strconv.Atoi(found[2])
			if rows*loops > most {
				t.Errorf("%s reads %d events: %s", what, rows*loops, found[0])
			}
		}
		if t.Failed() {
			t.Fatal(all)
		}
	}
	exec(`ALTER TABLE coord_events SET (autovacuum_enabled = off); ALTER TABLE coord_topics SET (autovacuum_enabled = off)`)
	functions()
	exec(`INSERT INTO coord_topics SELECT 'topic:' || i, 100, 7, 7 FROM generate_series(1, 3000) AS i;
		INSERT INTO coord_topics SELECT 'typing:' || i, 100, 7, 7 FROM generate_series(1, 10) AS i;
		INSERT INTO coord_events (seq, tag, prev, at, topic, kind, payload)
		SELECT n, 7, 7, now() + n * interval '1 hour' - interval '60 hours', t.topic, 'k', ''
		FROM generate_series(1, 100) AS n, coord_topics t WHERE t.topic LIKE 't%:%' ORDER BY n`)
	*plans = nil
	functions()
	check("publishing and looking", 4, "using coord_events_key on coord_events", "using coord_events_xid on coord_events")

	age := 49*time.Hour - 30*time.Minute
	for _, statistics := range []string{"", "with statistics: "} {
		trim := func(what string, want, most int, r coord.EventRetention) {
			t.Helper()
			*plans = nil
			if n, err := b.Trim(t.Context(), r); err != nil || n != want {
				t.Errorf("%s%s trimmed %d, %v, want %d", statistics, what, n, err, want)
			}
			check(statistics+what, most)
		}
		trim("a trim by age", 1000, 4*reapBatch, coord.EventRetention{Age: time.Hour})
		trim("a trim by age of a few topics", 10*11, 10*100+10, coord.EventRetention{Prefix: "typing:", Age: age})
		age -= 11 * time.Hour
		trim("a trim by age that finds nothing", 0, 10*100+10, coord.EventRetention{Prefix: "typing:", Age: 1000 * time.Hour})
		trim("a trim by number", 1000, 4*reapBatch, coord.EventRetention{Keep: 50})
		trim("a trim by number of a few topics", 0, 10, coord.EventRetention{Prefix: "typing:", Keep: 1000})
		exec(`ANALYZE coord_topics, coord_events`)
	}
}
