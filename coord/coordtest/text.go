package coordtest

import (
	"bytes"
	"fmt"

	"github.com/tandemhq/tandem/coord"
)

// awkward are names that mean something to SQL, to LIKE, to a query builder or
// to people.
var awkward = []string{
	`\`, `'`, `\'`, `\'); DELETE FROM coord_topics; --`, `''`, `\\`, `\x41`, `a\nb`, `?`, `?0`, `??`, `?::text`, `\?`, `%`, `_`,
	`a%_b`, `$1`, `$$`, `"`, `--`, `/*`, `{}`, `{"a"}`, `NULL`, ` `, `é`, `👩‍💻`, "\u202e", "\ufffd",
}

var textTests = []test{
	{"names are data, in the broadcaster", func(f *fixture) {
		for i, name := range awkward {
			// Alone and together with others.
			f.publish(f.one,
				coord.NewEvent{Topic: name, Kind: name, Payload: everyByte()},
				coord.NewEvent{Topic: fmt.Sprint(i), Kind: name},
				coord.NewEvent{Topic: name, Kind: name})
			got := f.read(name, coord.Start, 10)
			if len(got) != 2 || got[0].Topic != name || got[0].Kind != name || !bytes.Equal(got[0].Payload, everyByte()) {
				f.Errorf("topic %q: %s", name, show(got))
			}
			equal(f, fmt.Sprintf("the head of %q", name), f.head(name).Seq, 2)
			f.trim(coord.EventRetention{Prefix: name, Keep: 5})
		}
		for _, name := range awkward {
			equal(f, fmt.Sprintf("the events of %q after the others' trimming", name), len(f.read(name, coord.Start, 10)), 2)
		}
	}},
	{"names are data, in the claimer", func(f *fixture) {
		for _, name := range awkward {
			limit := coord.Concurrency{Key: name, Limit: 1}
			f.put(coord.Task{Name: name, Kind: name, Overlap: coord.OverlapAllow, Concurrency: limit})
			run, err := f.two.Claimer().Trigger(f.ctx, name, coord.TriggerOptions{Key: name, Payload: everyByte()})
			must(f, "Trigger", err)
			if run.Kind != name || run.UniqueKey != name || run.Concurrency != limit || !bytes.Equal(run.Payload, everyByte()) {
				f.Errorf("the run of task %q: %s", name, show(run))
			}
			f.enqueueOne(f.one, coord.NewRun{Kind: name, Concurrency: limit}) // in whose way the first one is
			o := want(name, 5)
			o.Worker, o.Kinds, o.Limits = name, []string{"x", name}, map[string]int{name: 3}
			claims := f.claim(f.one, o)
			if len(claims) != 1 || claims[0].Run.ID != run.ID || claims[0].Run.Worker != name {
				f.Fatalf("Claim of kind %q: %s", name, show(claims))
			}
			f.report(f.two, coord.Report{Claim: claims[0], Lines: []string{name, "", name}})
			equal(f, fmt.Sprintf("the log of the run of %q", name), f.texts(run.ID), []string{name, "", name})
			listed := f.runs(coord.RunFilter{Kind: name})
			if len(listed) != 2 || listed[1].ID != run.ID {
				f.Errorf("the runs of kind %q: %s", name, show(listed))
			}
			f.finish(f.two, coord.Result{Claim: claims[0], Outcome: coord.GiveUp, Error: name + string(everyByte())})
			runs := f.enqueue(f.one, coord.NewRun{Kind: "never", UniqueKey: name}, coord.NewRun{Kind: "never", UniqueKey: name})
			if runs[0].Duplicate || !runs[1].Duplicate || runs[0].ID != runs[1].ID {
				f.Errorf("the runs with the key %q: %s", name, show(runs))
			}
		}
		for _, name := range awkward {
			equal(f, "the task's name", f.task(name).Name, name)
			must(f, "DeleteTask", f.two.Claimer().DeleteTask(f.ctx, name))
		}
	}},
	{"names are data, in tickets and limits", func(f *fixture) {
		for _, name := range awkward {
			t := coord.TicketFor{Purpose: name, User: name, Session: name, Origin: name, Scope: name}
			must(f, "Redeem of a ticket of "+name, f.redeem(f.two, f.issue(f.one, t).Secret, t))
			equal(f, fmt.Sprintf("the first decision on %q", name), f.allow(f.one, perSecond(name, 1, 1)).Allowed, true)
			equal(f, fmt.Sprintf("the second decision on %q", name), f.allow(f.two, perSecond(name, 1, 1)).Allowed, false)
		}
	}},
}

// everyByte is a payload that has them all.
func everyByte() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}
