package stress

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tandemhq/tandem/coord"
)

// history is what is known in the end.
type history struct {
	journal []entry
	runs    []coord.Run
	queued  int           // how many runs of no task there must be
	every   time.Duration // between two occurrences of each task
	forbids map[coord.TaskID]bool
}

// tally is what the checker has counted.
type tally struct {
	Occurrences int
	Executions  int
	Rescues     int
	Duplicates  int // executions that began after the rescue of a run that had begun before
	Overlaps    int // executions that went on when another, with a newer token, had begun
	Refused     int // writes that were fenced
	Lost        int // at-most-once runs whose worker vanished
	Slowest     time.Duration
}

// life is what the journal has told of a run so far.
type life struct {
	coord.Run
	state      coord.State
	token      int64
	rescued    bool // the newest claim is a rescue
	executions map[int64]string
}

// check replays the journal and returns what contradicts the promises:
//
//   - Every run and every occurrence was executed at least once and has succeeded. One that
//     is at-most-once was executed at most once after its worker vanished.
//   - Each claim has the next token. A lease is taken away only when it is over, so that
//     no two are alive at a time.
//   - Only the holder of the newest token ends a run, and only when its handler says so: a
//     fenced write that was committed has the newest token, and a run does not change
//     its state while its holder is still at work.
//   - Each task has a run for each of its occurrences, without a gap, and never two at a
//     time if it forbids that.
func check(h history) (n tally, faults []string) {
	c := checker{lives: make(map[int64]*life), running: make(map[coord.TaskID]int)}
	for _, r := range h.runs {
		c.lives[int64(r.ID)] = &life{Run: r, state: coord.Queued, executions: make(map[int64]string)}
	}
	for _, e := range h.journal {
		l := c.lives[e.Run]
		if l == nil {
			c.fault("run %d is in the journal and not among the runs", e.Run)
			continue
		}
		if from, to, ok := strings.Cut(e.What, ">"); ok {
			c.change(h, l, e, coord.State(from), coord.State(to))
		} else {
			c.note(l, e)
		}
	}
	c.ends(h)
	c.occurrences(h)
	return c.tally, c.faults
}

type checker struct {
	tally
	lives   map[int64]*life
	running map[coord.TaskID]int
	faults  []string
}

func (c *checker) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// change is a change of a run's state or token.
func (c *checker) change(h history, l *life, e entry, from, to coord.State) {
	if from != l.state || from.Ended() {
		c.fault("entry %d: run %d went from %s to %s when it was %s", e.Seq, e.Run, from, to, l.state)
	}
	if late := time.Duration(e.LateMs) * time.Millisecond; from == coord.Running && e.Token != l.token {
		if late < 0 {
			c.fault("entry %d: run %d was taken from token %d when its lease had %v left", e.Seq, e.Run, l.token, -late)
		}
		c.Slowest = max(c.Slowest, late)
	}
	switch {
	case to == coord.Running:
		if e.Token != l.token+1 {
			c.fault("entry %d: run %d was claimed with token %d after %d", e.Seq, e.Run, e.Token, l.token)
		}
		l.rescued = from == coord.Running
		if l.rescued {
			c.Rescues++
			if l.AtMostOnce {
				c.fault("entry %d: run %d is at-most-once and was claimed again", e.Seq, e.Run)
			}
		}
	case e.Token != l.token: // ended by who found its worker gone
		c.Lost++
		if !l.AtMostOnce {
			c.fault("entry %d: run %d was given up: it is %s with token %d after %d", e.Seq, e.Run, to, e.Token, l.token)
		}
	default:
		if did := l.executions[l.token]; did != ended && did != wrote {
			c.fault("entry %d: run %d became %s while the holder of token %d had not ended it: %q", e.Seq, e.Run, to, l.token, did)
		}
	}
	if h.forbids[l.TaskID] {
		if from != coord.Running && to == coord.Running {
			c.running[l.TaskID]++
		} else if from == coord.Running && to != coord.Running {
			c.running[l.TaskID]--
		}
		if c.running[l.TaskID] > 1 {
			c.fault("entry %d: run %d of task %d runs beside another", e.Seq, e.Run, l.TaskID)
		}
	}
	l.state, l.token = to, e.Token
}

// note is what a handler noted.
func (c *checker) note(l *life, e entry) {
	did, known := l.executions[e.Token]
	if e.What == begun {
		c.Executions++
		if l.rescued && len(l.executions) > 0 {
			c.Duplicates++
		}
		if known || e.Token > l.token {
			c.fault("entry %d: run %d began with token %d, after %q; the newest token is %d", e.Seq, e.Run, e.Token, did, l.token)
		}
		l.executions[e.Token] = begun
		return
	}
	switch {
	case did == begun:
		l.executions[e.Token] = e.What
	case did == ended && e.What == refused:
	case did == wrote && e.What == stopped: // the context ended during the commit
	case did == ended && e.What == stopped: // it ended while that was noted: the run must not succeed
		l.executions[e.Token] = stopped
	default:
		c.fault("entry %d: run %d with token %d %s, after %q", e.Seq, e.Run, e.Token, e.What, did)
	}
	if did == begun && slices.ContainsFunc(slices.Collect(maps.Keys(l.executions)), func(t int64) bool { return t > e.Token }) {
		c.Overlaps++
	}
	current := e.Token == l.token
	switch e.What {
	case wrote:
		if !current || l.state != coord.Running {
			c.fault("entry %d: a write of run %d with token %d got through, when the run was %s with token %d",
				e.Seq, e.Run, e.Token, l.state, l.token)
		}
	case refused:
		c.Refused++
		if current {
			c.fault("entry %d: the holder of run %d with the newest token %d was refused, and the run was %s",
				e.Seq, e.Run, e.Token, l.state)
		}
	}
}

// ends compares the replay with the runs as they are in the end.
func (c *checker) ends(h history) {
	queued := 0
	for _, l := range c.lives {
		if l.TaskID == 0 {
			queued++
		} else {
			c.Occurrences++
		}
		switch {
		case l.state != l.State || !l.State.Ended():
			c.fault("run %d is %s in attempt %d; by the journal it is %s", l.ID, l.State, l.Attempt, l.state)
		case l.AtMostOnce:
			if len(l.executions) > 1 {
				c.fault("run %d is at-most-once and was executed %d times", l.ID, len(l.executions))
			}
		case l.State != coord.Succeeded || len(l.executions) == 0:
			c.fault("run %d %s after %d executions: %s", l.ID, l.State, len(l.executions), l.Error)
		}
	}
	if queued != h.queued {
		c.fault("%d runs were queued; want %d", queued, h.queued)
	}
}

// occurrences looks for gaps and duplicates among the occurrences of each task.
func (c *checker) occurrences(h history) {
	times := make(map[coord.TaskID][]time.Time)
	for _, r := range h.runs {
		if r.TaskID != 0 {
			times[r.TaskID] = append(times[r.TaskID], r.ScheduledFor)
		}
	}
	for task := range h.forbids {
		list := times[task]
		if len(list) == 0 {
			c.fault("task %d has no run", task)
		}
		slices.SortFunc(list, time.Time.Compare)
		for i := 1; i < len(list); i++ {
			if d := list[i].Sub(list[i-1]); d != h.every {
				c.fault("task %d has an occurrence at %v and the next one %v later", task, list[i-1], d)
			}
		}
	}
}
