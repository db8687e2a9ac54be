package hub

import (
	"sync"
	"time"
)

// batchBytes is how much of what waits goes out as one message.
const batchBytes = 128 << 10

// outbox is what waits for one socket. At most one message is in the hands of
// the socket's writer at a time; frames that come meanwhile go out together.
type outbox struct {
	limit     int           // bytes that may wait before put blocks
	slowAfter time.Duration // how long the client may take for one message
	write     func(message []byte)
	onSlow    func()

	mu     sync.Mutex
	space  *sync.Cond
	frames [][]byte
	unsent []byte // the frame of push, while it waits
	bytes  int
	busy   bool // a message is being written, or the socket is not open yet
	closed bool
	slow   *time.Timer // runs while busy
}

func newOutbox(limit int, slowAfter time.Duration, write func([]byte), onSlow func()) *outbox {
	o := &outbox{limit: limit, slowAfter: slowAfter, write: write, onSlow: onSlow, busy: true}
	o.space = sync.NewCond(&o.mu)
	return o
}

// open lets frames out, this one first.
func (o *outbox) open(first []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.frames = append([][]byte{first}, o.frames...)
	o.bytes += len(first)
	o.busy = false
	o.flush()
}

// put adds a frame. It waits while too much waits already, and reports false
// when the socket is closing.
func (o *outbox) put(frame []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.bytes >= o.limit && !o.closed {
		o.space.Wait()
	}
	return o.add(frame)
}

// push is put for a small frame that can't wait, and that is to be sent even when
// close drops what waits.
func (o *outbox) push(frame []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unsent = frame
	o.add(frame)
}

func (o *outbox) add(frame []byte) bool {
	if o.closed {
		return false
	}
	o.frames = append(o.frames, frame)
	o.bytes += len(frame)
	o.flush()
	return true
}

// sent is told that the message has been written.
func (o *outbox) sent() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.slow != nil {
		o.slow.Stop()
	}
	o.busy = false
	o.flush()
}

// close drops what waits and lets nothing more in. It returns the frame of push if
// that was among it.
func (o *outbox) close() (unsent []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		unsent = o.unsent
	}
	o.closed = true
	o.frames, o.bytes = nil, 0
	o.space.Broadcast()
	if o.slow != nil {
		o.slow.Stop()
	}
	return unsent
}

func (o *outbox) flush() {
	if o.busy || o.closed || len(o.frames) == 0 {
		return
	}
	n, size := 0, 0
	for n < len(o.frames) && (n == 0 || size+len(o.frames[n]) <= batchBytes) {
		size += len(o.frames[n])
		n++
	}
	message := o.frames[0]
	if n > 1 {
		message = make([]byte, 0, size+n+1)
		for i, frame := range o.frames[:n] {
			message = append(message, "[,"[min(i, 1)])
			message = append(message, frame...)
		}
		message = append(message, ']')
	}
	if o.frames = o.frames[n:]; len(o.frames) == 0 {
		o.frames, o.unsent = nil, nil
	}
	o.bytes -= size
	o.busy = true
	o.space.Broadcast()
	if o.slow == nil {
		o.slow = time.AfterFunc(o.slowAfter, o.onSlow)
	} else {
		o.slow.Reset(o.slowAfter)
	}
	o.write(message)
}
