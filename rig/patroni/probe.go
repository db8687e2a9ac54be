//go:build linux

package patroni

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	probeEvery = 250 * time.Millisecond
	probeLimit = 6 * time.Second // for one attempt
)

// Probe writes rows as a person with psql would, each by a connection of its own, and so finds
// out for how long nobody could: what a cluster takes to fail over, without the program.
type Probe struct {
	cluster *Cluster
	address string
	cancel  context.CancelFunc
	all     sync.WaitGroup

	mu      sync.Mutex
	last    time.Time // a write was acknowledged
	longest time.Duration
	acked   []int
	refused int
}

// Probed is what a probe found.
type Probed struct {
	Acknowledged, Refused int
	Lost                  int           // acknowledged, and not there
	Gap                   time.Duration // the longest between two acknowledged writes
}

// Probe starts a probe that connects by an address. ctx ends it, and so does Stop.
func (c *Cluster) Probe(ctx context.Context, address string) (*Probe, error) {
	if _, err := c.psql(ctx, address, "CREATE TABLE IF NOT EXISTS probe (n bigint PRIMARY KEY)"); err != nil {
		return nil, err
	}
	if _, err := c.psql(ctx, address, "TRUNCATE probe"); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &Probe{cluster: c, address: address, cancel: cancel, last: time.Now()}
	p.all.Go(func() { p.run(ctx) })
	return p, nil
}

// run begins a write every so often, whether those before have ended or not.
func (p *Probe) run(ctx context.Context) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		p.all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, probeLimit)
			defer cancel()
			_, err := p.cluster.psql(ctx, p.address, "INSERT INTO probe VALUES ("+strconv.Itoa(n)+")")
			p.note(n, err)
		})
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func numbers(text string) (list []int) {
	for field := range strings.FieldsSeq(text) {
		if n, err := strconv.Atoi(field); err == nil {
			list = append(list, n)
		}
	}
	return list
}

func (p *Probe) note(n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.refused++
		return
	}
	now := time.Now()
	p.longest = max(p.longest, now.Sub(p.last))
	p.last = now
	p.acked = append(p.acked, n)
}

// Stop ends the probe and looks what is there of what was acknowledged.
func (p *Probe) Stop(ctx context.Context) (Probed, error) {
	p.cancel()
	p.all.Wait()
	found := Probed{
		Acknowledged: len(p.acked), Refused: p.refused, Gap: max(p.longest, time.Since(p.last)),
	}
	there, err := p.cluster.psql(ctx, p.address, "SELECT string_agg(n::text, ' ') FROM probe")
	if err != nil {
		return found, fmt.Errorf("look for what a probe wrote: %w", err)
	}
	kept := make(map[int]bool)
	for _, n := range numbers(there) {
		kept[n] = true
	}
	for _, n := range p.acked {
		if !kept[n] {
			found.Lost++
		}
	}
	return found, nil
}
