package hub

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestOutboxIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written []string
		o := newOutbox(10, time.Minute, func(m []byte) { written = append(written, string(m)) }, func() { t.Error("slow") })
		o.open([]byte("first"))
		put := 0
		go func() {
			for o.put([]byte("1234")) {
				put++
			}
		}()
		synctest.Wait()
		if put != 3 || len(written) != 1 {
			t.Fatalf("%d frames went in and %v out; want 3 and the first", put, written)
		}
		o.sent()
		synctest.Wait()
		if put != 6 || len(written) != 2 || written[1] != "[1234,1234,1234]" {
			t.Fatalf("%d frames went in and %v out", put, written)
		}
		o.close()
		synctest.Wait()
		if o.bytes != 0 || o.put([]byte("late")) {
			t.Error("it takes frames after close")
		}
		o.sent()
		if len(written) != 2 {
			t.Errorf("%v went out after close", written[2:])
		}
	})
}

func TestOutboxFindsSlowClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Int32
		o := newOutbox(1<<20, time.Second, func([]byte) {}, func() { slow.Add(1) })
		o.push([]byte("early")) // waits until the socket is open
		time.Sleep(time.Minute)
		o.open([]byte("first"))
		for range 10 { // not quick, but never slow
			time.Sleep(900 * time.Millisecond)
			o.push([]byte("x"))
			o.sent()
		}
		time.Sleep(900 * time.Millisecond)
		o.sent()
		time.Sleep(time.Minute) // nothing waits for the client
		if slow.Load() != 0 {
			t.Fatal("called slow while it was not")
		}
		o.push([]byte("x"))
		time.Sleep(1100 * time.Millisecond)
		if slow.Load() != 1 {
			t.Error("not called slow")
		}
		o.close()
	})
}

func TestOutboxBatches(t *testing.T) {
	var written []string
	o := newOutbox(1<<20, time.Minute, func(m []byte) { written = append(written, string(m)) }, func() {})
	defer o.close()
	o.open([]byte("first"))
	large := strings.Repeat("x", batchBytes+1)
	for _, frame := range []string{"a", large, "b", "c"} {
		o.push([]byte(frame))
	}
	for range 3 {
		o.sent()
	}
	want := []string{"first", "a", large, "[b,c]"}
	if len(written) != len(want) {
		t.Fatalf("%d messages went out, want %d", len(written), len(want))
	}
	for i := range want {
		if written[i] != want[i] {
			t.Errorf("message %d has %d bytes, want %d", i, len(written[i]), len(want[i]))
		}
	}
}

// What tells a client to go is not lost when the socket is closed while an earlier
// message is still being written.
func TestOutboxKeepsTheFarewell(t *testing.T) {
	o := newOutbox(1<<20, time.Minute, func([]byte) {}, func() {})
	o.open([]byte("first"))
	o.put([]byte("event"))
	o.push([]byte("farewell"))
	if unsent := o.close(); string(unsent) != "farewell" {
		t.Errorf("close returned %q", unsent)
	}
	if unsent := o.close(); unsent != nil {
		t.Errorf("close returned %q again", unsent)
	}

	o = newOutbox(1<<20, time.Minute, func([]byte) {}, func() {})
	o.open([]byte("first"))
	o.push([]byte("farewell"))
	o.sent() // and the farewell goes out
	if unsent := o.close(); unsent != nil {
		t.Errorf("close returned %q, which was sent", unsent)
	}
}
