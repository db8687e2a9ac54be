package hub

import (
	"sync"
	"sync/atomic"
	"time"
)

// batchBytes is how much of what waits goes out as one message.
const batchBytes = 32 << 10

// fullGrace is how long a client has to take the message that is on its way when as
// much waits for it as may.
const fullGrace = time.Second

// outbox is what waits for one client. At most one message is in the hands of the
// writer at a time; frames that come meanwhile go out together. Nothing that is put
// into it ever waits.
type outbox struct {
	limit int           // bytes of events that may wait
	clock *atomic.Int64 // a recent time, in nanoseconds
	write func(frames []*frame)

	mu     sync.Mutex
	frames []*frame
	bytes  int
	unsent *frame // that of farewell, while it waits
	busy   bool   // a message is being written, or the client is not there yet
	closed bool
	since  int64         // when the message was given to the writer
	full   int64         // since when as much waits as may and nothing was taken; 0: it does not
	room   chan struct{} // closed when there is room; nil: nobody waits for it
}

// open lets frames out, those given first.
func (o *outbox) open(first ...*frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.frames = append(first, o.frames...)
	o.bytes += costOf(first)
	o.busy = false
	o.flush()
}

// put adds frames, how many there may be.
func (o *outbox) put(frames ...*frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(frames, costOf(frames))
}

// offer adds events whose cost is given. It reports false, and adds none, when more
// would wait than may. Some are always taken when nothing waits.
func (o *outbox) offer(frames []*frame, cost int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bytes > 0 && o.bytes+cost > o.limit && !o.closed {
		if o.full == 0 {
			o.full = o.clock.Load()
		}
		return false
	}
	o.add(frames, cost)
	return true
}

// press adds a frame that can't be had later. It reports false, and adds none, when twice
// as much as may would wait.
func (o *outbox) press(f *frame) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bytes > 0 && o.bytes+f.cost() > 2*o.limit {
		return false
	}
	o.add([]*frame{f}, f.cost())
	return true
}

// farewell is put for a frame that is to be sent even when close drops what waits.
func (o *outbox) farewell(f *frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.unsent = f
		o.add([]*frame{f}, f.cost())
	}
}

func (o *outbox) add(frames []*frame, cost int) {
	if o.closed || len(frames) == 0 {
		return
	}
	if !o.busy && cost <= batchBytes { // and so nothing waits
		o.unsent = nil
		o.give(frames)
		return
	}
	o.frames = append(o.frames, frames...)
	o.bytes += cost
	if !o.busy {
		o.flush()
	}
}

// sent is told that the message has been written.
func (o *outbox) sent() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy = false
	o.full = 0
	o.flush()
}

// flush gives the writer what waits, or as much of it as goes into one message.
func (o *outbox) flush() {
	if o.closed || len(o.frames) == 0 {
		return
	}
	n, size := 0, 0
	for n < len(o.frames) && (n == 0 || size+o.frames[n].cost() <= batchBytes) {
		size += o.frames[n].cost()
		n++
	}
	o.bytes -= size
	o.give(o.frames[:n])
	if n < len(o.frames) {
		o.frames = o.frames[n:]
	} else {
		clear(o.frames)
		if o.frames = o.frames[:0]; cap(o.frames) > 64 {
			o.frames = nil
		}
		o.unsent = nil
	}
	if o.bytes <= o.limit/4 {
		o.wake()
	}
}

// give hands frames to the writer, which does not keep the slice.
func (o *outbox) give(frames []*frame) {
	o.busy = true
	o.since = o.clock.Load()
	o.write(frames)
}

func (o *outbox) wake() {
	if o.room != nil {
		close(o.room)
		o.room = nil
	}
}

// waitForRoom waits until little waits, so that history leaves room for what is
// new. It reports false when the outbox is closed.
func (o *outbox) waitForRoom() bool {
	for {
		o.mu.Lock()
		if o.closed || o.bytes <= o.limit/4 {
			defer o.mu.Unlock()
			return !o.closed
		}
		if o.room == nil {
			o.room = make(chan struct{})
		}
		room := o.room
		o.mu.Unlock()
		<-room
	}
}

// slow reports whether the client has not taken a message for too long.
func (o *outbox) slow(now int64, after time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.busy || o.closed || o.since == 0 {
		return false
	}
	return now-o.since > int64(after) || o.full != 0 && now-o.full > int64(min(after, fullGrace))
}

// close drops what waits and lets nothing more in. It returns the frame of farewell
// if that was among it.
func (o *outbox) close() (unsent *frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		unsent = o.unsent
	}
	o.closed = true
	o.frames, o.bytes, o.unsent = nil, 0, nil
	o.wake()
	return unsent
}
