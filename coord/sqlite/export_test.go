package sqlite

import (
	"context"

	"github.com/tandemhq/tandem/coord"
)

// Prepared returns the texts of the statements that no query hook sees.
func Prepared() (texts []string) {
	var s statements
	for _, one := range append(s.writes(), s.reads()...) {
		texts = append(texts, one.text)
	}
	return texts
}

// OpenWatched is Open; waiting is how many changes wait for the lock.
func OpenWatched(ctx context.Context, o Options) (_ coord.Backend, waiting func() int, err error) {
	b, err := open(o)
	if err == nil {
		err = b.ready(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	b.start(ctx)
	return coord.Wrap(b, o.Options), func() int {
		b.writer.mu.Lock()
		defer b.writer.mu.Unlock()
		return len(b.writer.queue)
	}, nil
}
