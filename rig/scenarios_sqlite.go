package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/tandemhq/tandem/client"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/rig/fault"
	"github.com/tandemhq/tandem/rig/load"
	"github.com/tandemhq/tandem/rig/stand"
)

// small is a load for one replica on SQLite, into whose file nobody else looks: people post in a room, and others follow
// it.
type small struct {
	url     string
	session load.Session
	caller  *load.Caller
	room    int64
	crowd   load.Crowd
	end     context.CancelFunc
	acting  sync.WaitGroup

	mu    sync.Mutex
	said  map[string]load.Said
	acked int
	other load.Outcome // refusals that are wrong
	clean int          // refusals that are right
}

func startSmall(ctx context.Context, s *stand.Stand) (_ *small, err error) {
	const name, password = "ada", "correct horse battery"
	if _, err := s.Command(ctx, password+"\n", "user", "add", name, "--admin", "--password-stdin"); err != nil {
		return nil, err
	}
	cookie, err := client.SignIn(ctx, http.DefaultClient, s.Front, name, password)
	if err != nil {
		return nil, err
	}
	l := &small{
		url: s.Front, session: load.Session{Secret: cookie.Value}, caller: load.NewCaller(20 * time.Second), said: make(map[string]load.Said),
	}
	var made struct{ Room struct{ ID int64 } }
	err = l.caller.Want(ctx, l.session, http.MethodPost, l.url+"/api/v1/rooms", map[string]string{"kind": "public", "name": "general"}, &made)
	if err != nil {
		return nil, err
	}
	l.room = made.Room.ID
	l.crowd, err = load.NewCrowd(ctx, load.Order{URL: l.url, Sessions: []load.Session{l.session}, Topics: []string{l.topic()}, Clients: 3, AtOnce: 1})
	if err != nil {
		return nil, err
	}
	ctx, l.end = context.WithCancel(ctx)
	for i := range 4 {
		l.acting.Go(func() {
			for n := 0; stand.Pause(ctx, 150*time.Millisecond) == nil; n++ {
				l.post(ctx, fmt.Sprintf("post-%d-%d", i, n))
			}
		})
	}
	return l, nil
}

func (l *small) topic() string    { return fmt.Sprintf("room:%d", l.room) }
func (l *small) messages() string { return fmt.Sprintf("%s/api/v1/rooms/%d/messages", l.url, l.room) }

// post says something until that is acknowledged.
func (l *small) post(ctx context.Context, id string) {
	for ctx.Err() == nil {
		// A request is not cut off by the end of the load: its outcome is known then.
		a, err := l.caller.Ask(context.WithoutCancel(ctx), l.session, http.MethodPost, l.messages(), nil, map[string]string{"client_id": id, "text": id}, nil)
		l.mu.Lock()
		l.said[id] = load.Said{Topic: l.topic(), Acknowledged: err == nil && a.OK()}
		switch {
		case err == nil && a.OK():
			l.acked++
		case err == nil && a.Status == http.StatusServiceUnavailable:
			l.clean++
		default:
			l.other.Fault("a message was refused: %v %v", a, err)
		}
		l.mu.Unlock()
		if err == nil && a.OK() {
			return
		}
		_ = stand.Pause(ctx, 200*time.Millisecond)
	}
}

func (l *small) counts() (acknowledged, refused int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acked, l.clean
}

// await waits until so much more was acknowledged, not for long.
func (l *small) await(ctx context.Context, more int) error {
	from, _ := l.counts()
	return stand.Await(ctx, "the load", func() string {
		if now, _ := l.counts(); now < from+more {
			return fmt.Sprintf("%d of %d more are acknowledged", now-from, more)
		}
		return ""
	})
}

func (l *small) stop() {
	l.end()
	l.acting.Wait()
	l.crowd.Close()
	l.caller.Close()
}

// check holds what is there to what was acknowledged.
func (l *small) check(ctx context.Context) (o load.Outcome, err error) {
	l.end()
	l.acting.Wait()
	l.crowd.Calm()
	h := load.History{Said: l.said, Stored: make(map[string]int)}
	heads := make(map[string]coord.Position)
	for before := int64(0); ; {
		var page struct {
			Messages []struct {
				ID   int64
				Text string
			}
			More     bool
			Position coord.Position
		}
		which := "?limit=200"
		if before > 0 {
			which += fmt.Sprintf("&before=%d", before)
		}
		if err := l.caller.Want(ctx, l.session, http.MethodGet, l.messages()+which, nil, &page); err != nil {
			return o, err
		}
		if before == 0 {
			heads[l.topic()] = page.Position
		}
		for _, m := range page.Messages {
			h.Stored[m.Text]++
		}
		if !page.More {
			break
		}
		before = page.Messages[0].ID
	}
	limited, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	seen, err := l.crowd.Await(limited, heads)
	if err != nil {
		return o, err
	}
	h.Seen = []load.Seen{seen}
	o = h.Check()
	o.Add(l.other)
	o.Note("%d messages, %d refusals with 503, %d deliveries", len(l.said), l.clean, seen.Deliveries)
	return o, nil
}

// runFullSQLite takes the room of the disk on which a replica has its database.
func runFullSQLite(ctx context.Context, r *Rig) (o load.Outcome, err error) {
	disk, err := fault.NewDisk(32 << 20)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	var breaks []stand.Change
	if r.Broken {
		breaks = append(breaks, acknowledgeAnyway)
	}
	program, err := r.Builds.Program(ctx, "sqlite", breaks...)
	if err != nil {
		return o, err
	}
	s, err := r.Stand(ctx, stand.Options{
		Program: program, Replicas: 1, Database: "sqlite:" + filepath.Join(disk.Path(), "tandem.db"),
	})
	if err != nil {
		return o, err
	}
	defer s.Stop()
	l, err := startSmall(ctx, s)
	if err != nil {
		return o, err
	}
	defer l.stop()
	for round := range 3 {
		if err := l.await(ctx, 50); err != nil {
			return o, err
		}
		r.Say("the disk is full")
		acked, refused := l.counts()
		if err := fill(ctx, r, disk, 6*time.Second); err != nil {
			return o, err
		}
		ackedNow, refusedNow := l.counts()
		r.Say("%d were acknowledged meanwhile, and %d refused", ackedNow-acked, refusedNow-refused)
		if refusedNow == refused && !r.Broken {
			return o, errors.New("the disk was never full: nothing was refused")
		}
		if round == 2 { // it must also find what it needs when it starts on what is left
			s.Replicas[0].Kill()
			r.Say("the replica is killed")
		}
		if err := disk.Empty(); err != nil {
			return o, err
		}
		r.Say("there is room")
		if round == 2 {
			if err := s.StartAll(ctx); err != nil {
				return o, err
			}
		}
		if err := l.await(ctx, 50); err != nil {
			o.Fault("%v", err)
		}
	}
	final, err := l.check(ctx)
	final.Add(o)
	return final, err
}
