package testenv

import "context"

// StartPooler is [NewPooler] for a cluster and without a test: the caller stops it.
func StartPooler(ctx context.Context, c *Cluster) (*Pooler, error) { return startPooler(ctx, c) }

// Stop ends the pooler and removes its files.
func (p *Pooler) Stop() {
	p.server.stop()
	p.folder.remove()
}

// Ended reports whether the pooler has ended, by Stop or by itself.
func (p *Pooler) Ended() bool { return p.server.Ended() }
