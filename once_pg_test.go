//go:build pg

package main

import (
	"encoding/json"
	"net/http"
	"sync"
	"testing"
)

// TestClusterCarriesOutOnce sends one request with a key to all replicas at once, kills the one that has
// carried it out, and asks the others again.
func TestClusterCarriesOutOnce(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	p := setUp(t, c.replicas[0])
	p.http.Transport = &keyed{RoundTripper: p.http.Transport, key: `"one"`}
	var mu sync.Mutex
	var first string // who has carried it out
	ids := map[int64]int{}
	send := func(r *replica) {
		a, err := p.ask("POST", r.url+"/api/v1/rooms", map[string]string{"name": "Plans"})
		var made struct{ Room struct{ ID int64 } }
		if err != nil || a.status != http.StatusCreated || json.Unmarshal(a.body, &made) != nil {
			t.Errorf("%s: status %d %s, %v", r.name, a.status, a.body, err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		ids[made.Room.ID]++
		if a.header.Get("Idempotency-Replayed") == "" {
			if first != "" {
				t.Errorf("both %s and %s have carried it out", first, r.name)
			}
			first = r.name
		}
	}
	var all sync.WaitGroup
	for range 10 {
		for _, r := range c.replicas {
			all.Go(func() { send(r) })
		}
	}
	all.Wait()
	if t.Failed() || first == "" {
		t.Fatalf("it was carried out by %q", first)
	}
	c.remove(first).Kill()
	for _, r := range c.replicas {
		send(r)
	}
	if len(ids) != 1 {
		t.Errorf("the rooms are %v", ids)
	}
}
