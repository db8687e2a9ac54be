package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/migrations"
)

// judged is what a finding is to be: its level, whether it forbids a second replica, and what
// it and its advice mention.
type judged struct {
	name     string
	is       Finding
	level    Level
	unsafe   bool
	mentions string
}

func check(t *testing.T, all []judged) {
	t.Helper()
	for _, j := range all {
		t.Run(j.name, func(t *testing.T) {
			if j.is.Level != j.level || j.is.Unsafe != j.unsafe {
				t.Errorf("%q is %s, unsafe %t; want %s, %t", j.is.Found, j.is.Level, j.is.Unsafe, j.level, j.unsafe)
			}
			if !strings.Contains(j.is.Found+"\n"+j.is.Advice, j.mentions) {
				t.Errorf("%q with the advice %q does not mention %q", j.is.Found, j.is.Advice, j.mentions)
			}
			if (j.is.Level == OK) != (j.is.Advice == "") || j.is.Found == "" {
				t.Errorf("%s: found %q, advice %q", j.is.Level, j.is.Found, j.is.Advice)
			}
		})
	}
}

func with[T any](v T, change func(*T)) T {
	change(&v)
	return v
}

func TestSettings(t *testing.T) {
	good := Config{
		Lease: 30 * time.Second, Poll: 500 * time.Millisecond, DrainGrace: 5 * time.Second, ShutdownTimeout: 20 * time.Second,
		Public: true, Proxies: 1,
	}
	check(t, []judged{
		{"good", judgeSettings(good), OK, false, "agree"},
		{"a lease of three polls", judgeSettings(with(good, func(c *Config) { c.Poll = 10 * time.Second })), OK, false, ""},
		{"a short lease", judgeSettings(with(good, func(c *Config) { c.Poll = 11 * time.Second })), Warning, false, "TANDEM_LEASE"},
		{"little time to stop", judgeSettings(with(good, func(c *Config) { c.DrainGrace = 16 * time.Second })), Warning, false, "TANDEM_DRAIN_GRACE"},
		{"no proxy", judgeSettings(with(good, func(c *Config) { c.Proxies = 0 })), Warning, false, "TANDEM_TRUSTED_PROXIES"},
		{"no proxy on one's own machine", judgeSettings(with(good, func(c *Config) { c.Proxies, c.Public = 0, false })), OK, false, ""},
		{"all of it", judgeSettings(Config{Lease: 1, Poll: 1, Public: true}), Warning, false, "; "},
	})
}

func TestReplicas(t *testing.T) {
	member := func(name, version string) coord.MemberInfo {
		return coord.MemberInfo{Name: name, Data: []byte(version), Since: time.Unix(0, 0)}
	}
	check(t, []judged{
		{"none", judgeReplicas(nil, "1"), OK, false, "none runs"},
		{"two", judgeReplicas([]coord.MemberInfo{member("a", "1"), member("b", "1")}, "1"), OK, false, "2 (a 1 since 1970-01-01T00:00:00Z, b 1"},
		{"another program", judgeReplicas([]coord.MemberInfo{member("a", "1")}, "2"), OK, false, "this program is 2"},
		{"two versions", judgeReplicas([]coord.MemberInfo{member("a", "1"), member("b", "2")}, "1"), Warning, false, "2 versions"},
		{"one name", judgeReplicas([]coord.MemberInfo{member("a", "1"), member("a", "1"), member("a", "1")}, "1"), Warning, false, "called a"},
	})
}

func TestLeaders(t *testing.T) {
	check(t, []judged{
		{"nobody", judgeLeaders(nil), OK, false, "nobody"},
		{"somebody", judgeLeaders([]coord.Leadership{
			{Term: coord.Term{Name: "jobs", Epoch: 7}, Candidate: "a", Since: time.Unix(0, 0), Until: time.Unix(15, 0)},
		}), OK, false, "a leads jobs in term 7 since 1970-01-01T00:00:00Z, until 1970-01-01T00:00:15Z"},
	})
}

func TestSchema(t *testing.T) {
	known := []migrations.Migration{{Set: "coord", Version: 1, Name: "0001_a.sql"}, {Set: "coord", Version: 2, Name: "0002_b.sql"}, {Set: "app", Version: 1, Name: "0001_c.sql"}}
	newer := migrations.Migration{Set: "app", Version: 9}
	check(t, []judged{
		{"all", judgeSchema(known, known, nil), OK, false, "3 migrations"},
		{"none", judgeSchema(known, nil, nil), Warning, false, "no schema"},
		{"one is missing", judgeSchema(known, []migrations.Migration{known[0], known[2]}, nil), Warning, false, "coord/0002_b.sql"},
		{"a set is missing", judgeSchema(known, known[:2], nil), Warning, false, "app/0001_c.sql"},
		{"a gap", judgeSchema(known, known[1:], nil), Problem, true, "coord/0001_a.sql"},
		{"a newer one", judgeSchema(known, append([]migrations.Migration{newer}, known...), nil), Warning, false, "app/0009"},
		{"a newer one that took away", judgeSchema(known, append([]migrations.Migration{newer}, known...), migrations.ErrContracted), Problem, true, "later version"},
		{"a newer one instead of ours", judgeSchema(known, append([]migrations.Migration{newer}, known[:2]...), nil), Problem, true, "app/0001_c.sql"},
	})
}

func TestJobs(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	periods := map[string]time.Duration{"audit.reap": time.Hour, "runs.prune": time.Minute}
	judge := func(records ...store.JobRecord) Finding {
		return judgeJobs(records, []coord.MemberInfo{{Since: now}, {Since: now.Add(-48 * time.Hour)}}, periods)
	}
	dueFor := func(d time.Duration, r store.JobRecord) store.JobRecord {
		r.NextAt, r.AsOf = store.Time{Time: now.Add(-d)}, store.Time{Time: now}
		return r
	}
	good := store.JobRecord{Name: "audit.reap", Turn: 7, Node: "a", Error: "of long ago", EndedAt: store.Time{Time: now}}
	bad := store.JobRecord{Name: "runs.prune", Turn: 7, Node: "b", Error: "no\nway", Failures: 2}
	check(t, []judged{
		{"good", judge(good), OK, false, "1, of which none fails"},
		{"bad", judge(good, bad), Warning, false, "runs.prune has failed 2 times"},
		{"why", judge(bad), Warning, false, "no way"},
		{"due for three periods", judge(dueFor(3*time.Hour, good)), OK, false, ""},
		{"due for longer", judge(dueFor(3*time.Hour+1, good)), Warning, false, "audit.reap, which is done every 1h0m0s, is due since 2026-03-04T02:06:06Z, and no replica does it\nlook at the logs"},
		{"a turn that has not ended", judge(dueFor(4*time.Hour, with(good, func(r *store.JobRecord) { r.EndedAt = store.Time{} }))), Warning, false, "has not ended\nrestart a"},
		{"a job of each minute", judge(dueFor(5*time.Minute, with(good, func(r *store.JobRecord) { r.Name = "runs.prune" }))), OK, false, ""},
		{"a job of each minute for longer", judge(dueFor(5*time.Minute+1, with(good, func(r *store.JobRecord) { r.Name = "runs.prune" }))), Warning, false, "runs.prune"},
		{"turned off, or of another version", judge(dueFor(24*time.Hour, with(good, func(r *store.JobRecord) { r.Name = "another" }))), OK, false, ""},
		{"no replica runs", judgeJobs([]store.JobRecord{dueFor(24*time.Hour, good)}, nil, periods), OK, false, ""},
		{
			"replicas have just begun",
			judgeJobs([]store.JobRecord{dueFor(24*time.Hour, good)}, []coord.MemberInfo{{Since: now.Add(-3 * time.Hour)}, {Since: now}}, periods),
			OK, false, "",
		},
	})
}

func TestKeys(t *testing.T) {
	mine := []string{"kek_1", "kek_2"}
	check(t, []judged{
		{"none", judgeKeys(nil, nil), OK, false, "none yet"},
		{"sealed", judgeKeys([]sealedKey{{"a 1", "kek_2"}, {"a 2", "kek_1"}}, mine), OK, false, "all 2"},
		{"plain", judgeKeys([]sealedKey{{"a 1", "kek_2"}, {"a 2", ""}}, mine), Warning, false, "a 2"},
		{"sealed by another", judgeKeys([]sealedKey{{"a 1", "kek_3"}, {"a 2", ""}}, mine), Problem, true, "a 1 by kek_3"},
	})
}

func TestIndexes(t *testing.T) {
	want := migrations.Schema{Tables: []string{"a"}, Functions: []string{"f"}, Indexes: []migrations.Index{
		{Name: "a_once", Table: "a", Unique: true, SQL: "CREATE UNIQUE INDEX a_once ON a (n)"},
		{Name: "a_fast", Table: "a", SQL: "CREATE INDEX a_fast ON a (m)"},
	}}
	good := func() objects {
		return objects{tables: []string{"a", "another"}, functions: []string{"f"}, indexes: []index{
			{name: "a_pkey", table: "a", unique: true, valid: true, constraint: true},
			{name: "a_once", table: "a", unique: true, valid: true},
			{name: "a_fast", table: "a", valid: true},
			{name: "a_mine", table: "a", valid: true},
		}}
	}
	judge := func(change func(*objects)) Finding { return judgeIndexes(want, with(good(), change), false) }
	check(t, []judged{
		{"good", judgeIndexes(want, good(), false), OK, false, "1 tables and 2 indexes"},
		{"no table", judge(func(o *objects) { o.tables = nil }), Problem, true, "table a is missing"},
		{"no function", judge(func(o *objects) { o.functions = nil }), Problem, true, "function f is missing"},
		{"no key", judge(func(o *objects) { o.keyless = []string{"a"} }), Problem, true, "primary key"},
		{"no unique index", judge(func(o *objects) { o.indexes[1].name = "x" }), Problem, true, "CREATE UNIQUE INDEX a_once ON a (n)"},
		{"no index", judge(func(o *objects) { o.indexes[2].name = "x" }), Problem, false, "CREATE INDEX a_fast ON a (m)"},
		{"a unique index that is not valid", judge(func(o *objects) { o.indexes[1].valid = false }), Problem, true, "REINDEX INDEX CONCURRENTLY a_once"},
		{"an index that is not valid", judge(func(o *objects) { o.indexes[2].valid = false }), Problem, false, "REINDEX INDEX CONCURRENTLY a_fast"},
		{"a unique index that is not unique", judge(func(o *objects) { o.indexes[1].unique = false }), Problem, true, "another one"},
		{"an index of another table", judge(func(o *objects) { o.indexes[2].table = "another" }), Problem, false, "another one"},
		{"a key that is not valid", judge(func(o *objects) { o.indexes[0].valid = false }), Problem, true, "a_pkey"},
		{"somebody's index that is not valid", judge(func(o *objects) { o.indexes[3].valid = false }), Warning, false, "DROP INDEX CONCURRENTLY a_mine"},
		{"removed by a newer version", judgeIndexes(want, objects{tables: []string{"a"}}, true), Warning, false, "newer version"},
	})
}

func TestPostgres(t *testing.T) {
	up := server{number: 150004, version: "15.4", encoding: "UTF8", answered: time.Millisecond}
	here := identity{"tandem", "public", 16384, time.Unix(5, 0)}
	bounded := settings{statement: 15 * time.Second, fsync: "on", pages: "on", commit: "on"}
	timeouts := func(change func(*settings)) Finding { s := with(bounded, change); return judgeTimeouts(s, s) }
	room := connections{most: 97, others: 5, each: 30, replicas: 1}
	check(t, []judged{
		{"database", judgeServer(up), OK, false, "15.4"},
		{"an old version", judgeServer(with(up, func(s *server) { s.number = 140012 })), Problem, true, "15 or newer"},
		{"a standby", judgeServer(with(up, func(s *server) { s.recovery, s.readOnly = true, true })), Problem, true, "standby"},
		{"read-only", judgeServer(with(up, func(s *server) { s.readOnly = true })), Problem, true, "default_transaction_read_only"},
		{"an encoding", judgeServer(with(up, func(s *server) { s.encoding = "LATIN1" })), Problem, false, "LATIN1"},

		{"direct", judgeDirect(here, here), OK, false, "tandem"},
		{"another database", judgeDirect(here, identity{"other", "public", 16385, here.started}), Problem, true, "other"},
		{"another schema", judgeDirect(here, with(here, func(i *identity) { i.schema = "mine" })), Problem, true, "search_path"},
		{"another server", judgeDirect(here, identity{"tandem", "public", 16384, time.Unix(6, 0)}), Problem, true, "another one"},

		{"heard", judgeHeard(time.Millisecond, nil), OK, false, "1ms"},
		{"not heard", judgeHeard(0, context.DeadlineExceeded), Warning, false, "polling"},

		{"no pooler", judgePooler(false, false), OK, false, "none"},
		{"a pooler and a way past it", judgePooler(true, false), OK, false, "past it"},
		{"a pooler", judgePooler(true, true), Warning, false, "TANDEM_LISTEN_URL"},

		{"clock", judgeSkew(1900*time.Millisecond, 0), OK, false, "ahead"},
		{"a clock that is behind", judgeSkew(-3*time.Second, 0), Warning, false, "3s behind"},
		{"a clock that is ahead", judgeSkew(3*time.Second, 0), Warning, false, "3s ahead"},
		{"a slow answer", judgeSkew(3*time.Second, 2*time.Second), OK, false, ""},
		{"a clock that is far off", judgeSkew(-2*time.Hour, 0), Problem, false, "certificates"},

		{"timeouts", judgeTimeouts(bounded, bounded), OK, false, "15s"},
		{"no statement_timeout", timeouts(func(s *settings) { s.statement = 0 }), Warning, false, "ALTER ROLE"},
		{"a short statement_timeout", timeouts(func(s *settings) { s.statement = time.Second }), Warning, false, "1s"},
		{"a long statement_timeout", timeouts(func(s *settings) { s.statement = time.Minute }), OK, false, "1m0s"},
		{"transaction_timeout", timeouts(func(s *settings) { s.transaction = 10 * time.Second }), Warning, false, "transaction_timeout"},
		{"a long transaction_timeout", timeouts(func(s *settings) { s.transaction = time.Minute }), OK, false, ""},
		{"idle_session_timeout", timeouts(func(s *settings) { s.idleSession = time.Minute }), Warning, false, "idle_session_timeout"},

		{"durability", judgeDurability(bounded), OK, false, "synchronous_commit=on"},
		{"fsync", judgeDurability(with(bounded, func(s *settings) { s.fsync = "off" })), Problem, false, "fsync"},
		{"full_page_writes", judgeDurability(with(bounded, func(s *settings) { s.pages = "off" })), Problem, false, "full_page_writes"},
		{"synchronous_commit", judgeDurability(with(bounded, func(s *settings) { s.commit = "off" })), Problem, false, "synchronous_commit"},

		{"connections", judgeConnections(with(room, func(c *connections) { c.most = 95 })), OK, false, "2 replicas"},
		{"too few for an update", judgeConnections(with(room, func(c *connections) { c.most = 94 })), Warning, false, "TANDEM_DATABASE_CONNS"},
		{"enough for two", judgeConnections(with(room, func(c *connections) { c.most = 65 })), Warning, false, ""},
		{"too few", judgeConnections(with(room, func(c *connections) { c.most = 64 })), Problem, true, "TANDEM_DATABASE_CONNS"},
		{"too few for those that run", judgeConnections(with(room, func(c *connections) { c.replicas = 4 })), Problem, true, "4 replicas"},
		{"behind a pooler", judgeConnections(with(room, func(c *connections) { c.pooled = true })), OK, false, "pooler"},

		{"privileges", judgePrivileges(privileges{role: "r", makes: true, pending: true}), OK, false, "the role r"},
		{"some are lacking", judgePrivileges(privileges{lacks: []string{"USAGE on s"}, makes: true}), Problem, true, "USAGE on s"},
		{"no tables can be made", judgePrivileges(privileges{direct: "m"}), Warning, false, "the role m"},
		{"no tables can be made that are missing", judgePrivileges(privileges{pending: true}), Problem, true, "tandem migrate"},

		{"notifications", judgeNotifications(0.1), OK, false, "10.0 %"},
		{"some notifications", judgeNotifications(0.11), Warning, false, "pg_stat_activity"},
		{"many notifications", judgeNotifications(0.51), Problem, false, "commits"},

		{"transactions", judgeTransactions(transactions{oldest: time.Minute}), OK, false, "1m0s"},
		{"a long transaction", judgeTransactions(transactions{oldest: 2 * time.Minute, who: "process 7"}), Warning, false, "process 7"},
		{"a very long transaction", judgeTransactions(transactions{oldest: 2 * time.Hour}), Problem, false, "vacuum"},
		{"a prepared transaction", judgeTransactions(transactions{prepared: 2 * time.Minute, gid: "x"}), Warning, false, "PREPARED"},
		{"an old prepared transaction", judgeTransactions(transactions{prepared: 2 * time.Hour}), Problem, false, "PREPARED"},
		{"hidden sessions", judgeTransactions(transactions{hidden: 3}), Warning, false, "pg_monitor"},

		{"vacuum", judgeVacuum(vacuum{tables: []rowsOf{{"a", 20_000, 15_000, true}, {"b", 0, 9_999, false}}}), OK, false, "24999"},
		{"no autovacuum", judgeVacuum(vacuum{off: true}), Problem, false, "autovacuum"},
		{"never vacuumed", judgeVacuum(vacuum{tables: []rowsOf{{"a", 20_000, 15_000, false}}}), Warning, false, "VACUUM ANALYZE a"},
		{"dead rows", judgeVacuum(vacuum{tables: []rowsOf{{"a", 10_000, 15_000, true}}}), Warning, false, "holds it back"},

		{"a file", judgeFile("3.50", "wal", nil), OK, false, "3.50"},
		{"a file with a journal", judgeFile("3.50", "delete", nil), Warning, false, "delete"},
		{"a file of somebody else", judgeFile("3.50", "wal", errors.New("write to it")), Problem, true, "can't write to it"},
	})
}

// finds is a check that finds something.
func finds(name string, f Finding) Check {
	return Check{Name: name, Look: func(context.Context) (Finding, error) { return f, nil }}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		name     string
		findings []Finding
		safe     bool
		says     string
	}{
		{"good", []Finding{fine("a"), fine("b")}, true, "A second replica is safe."},
		{"a problem that is not about it", []Finding{fine("a"), problem("do", "b"), warning("do", "c")}, true, "problem: 1, warning: 1"},
		{"a problem", []Finding{fine("a"), unsafe("do", "fault")}, false, "A second replica is NOT safe: 1: fault."},
		{"two", []Finding{unsafe("do", "fault"), unsafe("do", "b")}, false, "and 1 more"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var checks []Check
			for i, f := range c.findings {
				checks = append(checks, finds(string(rune('0'+i)), f))
			}
			results := Run(t.Context(), checks...)
			safe, sentence := Verdict(results)
			if safe != c.safe || !strings.Contains(sentence, c.says) {
				t.Errorf("%t: %s", safe, sentence)
			}
			var text, lines bytes.Buffer
			if safe, err := Print(&text, results); safe != c.safe || err != nil {
				t.Error(safe, err)
			}
			if !strings.HasSuffix(text.String(), "\n\n"+sentence+"\n") {
				t.Errorf("for people:\n%s", &text)
			}
			if safe, err := PrintJSON(&lines, results); safe != c.safe || err != nil {
				t.Error(safe, err)
			}
			all := strings.Split(strings.TrimSpace(lines.String()), "\n")
			if len(all) != len(checks)+1 {
				t.Fatalf("for machines:\n%s", &lines)
			}
			var last struct {
				Safe    *bool
				Verdict string
			}
			if err := json.Unmarshal([]byte(all[len(checks)]), &last); err != nil || *last.Safe != c.safe || last.Verdict != sentence {
				t.Errorf("%s: %v", all[len(checks)], err)
			}
		})
	}
}

// A check that can't be made says so, in time, and counts as unsafe when it is vital.
func TestChecksThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		fails := func(err error) func(context.Context) (Finding, error) {
			return func(context.Context) (Finding, error) { return fine("never"), err }
		}
		looked := false
		checks := []Check{
			{Name: "fails", Look: fails(errors.New("no\nway"))},
			{Name: "vital", Vital: true, Look: fails(errors.New("refused"))},
			{Name: "slow", Look: func(ctx context.Context) (Finding, error) { <-ctx.Done(); return Finding{}, ctx.Err() }},
			{Name: "hangs", Look: func(context.Context) (Finding, error) { <-release; return fine("late"), nil }},
			{Name: "needs", Needs: "vital", Look: func(context.Context) (Finding, error) { looked = true; return fine("never"), nil }},
			{Name: "follows", Needs: "good", Look: func(context.Context) (Finding, error) { return fine("after"), nil }},
			finds("good", fine("good")),
		}
		began := time.Now()
		results := Run(t.Context(), checks...)
		if took := time.Since(began); took > Deadline+leaving {
			t.Errorf("took %v", took)
		}
		for i, want := range []struct {
			level  Level
			unsafe bool
			found  string
		}{
			{Unknown, false, "no; way"},
			{Unknown, true, "refused"},
			{Unknown, false, "no answer within 3s"},
			{Unknown, false, "no answer within 3s"},
			{Unknown, false, "vital"},
			{OK, false, "after"},
			{OK, false, "good"},
		} {
			if r := results[i]; r.Check != checks[i].Name || r.Level != want.level || r.Unsafe != want.unsafe || !strings.Contains(r.Found, want.found) {
				t.Errorf("%s: %+v, want %+v", checks[i].Name, r, want)
			}
		}
		if looked {
			t.Error("a check was made without what it needs")
		}
		if safe, _ := Verdict(results); safe {
			t.Error("safe, although what is vital is not known")
		}
		close(release)
	})
}
