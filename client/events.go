package client

import (
	"bytes"
	"strconv"

	"github.com/tandemhq/tandem/coord"
)

// eventParser reads a message that holds events only, written as the server writes them, several
// times faster than package json, which reads everything else. It is for one goroutine.
type eventParser struct {
	topic, kind string // of the event before, which mostly are those of the next one
}

// parse returns the events of a message, or false when package json must look at it. The payloads
// share the message's memory.
func (p *eventParser) parse(message []byte) (list []coord.Event, ok bool) {
	rest, many := bytes.CutPrefix(message, []byte("["))
	for {
		var e coord.Event
		if e, rest, ok = p.event(rest); !ok {
			return nil, false
		}
		list = append(list, e)
		switch {
		case !many:
			return list, len(rest) == 0
		case string(rest) == "]":
			return list, true
		case len(rest) == 0 || rest[0] != ',':
			return nil, false
		}
		rest = rest[1:]
	}
}

func (p *eventParser) event(b []byte) (e coord.Event, rest []byte, ok bool) {
	var topic, position, kind, at []byte
	if topic, b, ok = text(b, `{"type":"event","topic":"`); !ok {
		return e, nil, false
	}
	if position, b, ok = text(b, `,"position":"`); !ok {
		return e, nil, false
	}
	if kind, b, ok = text(b, `,"kind":"`); !ok {
		return e, nil, false
	}
	if b, ok = bytes.CutPrefix(b, []byte(`,"payload":`)); !ok {
		return e, nil, false
	}
	n := valueLength(b)
	e.Payload, b = b[:n:n], b[n:]
	if at, b, ok = text(b, `,"at":"`); !ok || n == 0 {
		return e, nil, false
	}
	if rest, ok = bytes.CutPrefix(b, []byte("}")); !ok {
		return e, nil, false
	}
	if e.Position, ok = parsePosition(position); !ok {
		return e, nil, false
	}
	if string(topic) != p.topic {
		p.topic = string(topic)
	}
	if string(kind) != p.kind {
		p.kind = string(kind)
	}
	e.Topic, e.Kind = p.topic, p.kind
	return e, rest, e.At.UnmarshalText(at) == nil
}

// text returns the JSON string that follows a prefix, which ends with its quote, if nothing in it is
// escaped.
func text(b []byte, prefix string) (s, rest []byte, ok bool) {
	if len(b) < len(prefix) || string(b[:len(prefix)]) != prefix {
		return nil, nil, false
	}
	b = b[len(prefix):]
	end := bytes.IndexByte(b, '"')
	if end < 0 || bytes.IndexByte(b[:end], '\\') >= 0 {
		return nil, nil, false
	}
	return b[:end], b[end+1:], true
}

// valueLength is how long the JSON object or array is that b begins with; 0 when it is something else.
func valueLength(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		case '"':
			for i++; ; i++ {
				n := bytes.IndexByte(b[i:], '"')
				if n < 0 {
					return 0
				}
				i += n
				slashes := 0
				for b[i-1-slashes] == '\\' {
					slashes++
				}
				if slashes%2 == 0 {
					break
				}
			}
		}
		if depth == 0 {
			return 0
		}
	}
	return 0
}

// parsePosition reads a position as in "42.9f3a1c07".
func parsePosition(b []byte) (p coord.Position, ok bool) {
	number, tag, ok := bytes.Cut(b, []byte("."))
	if !ok || len(number) == 0 || len(number) > 18 || number[0] == '0' || len(tag) != 8 {
		return p, false
	}
	for _, digit := range number {
		if digit < '0' || digit > '9' {
			return p, false
		}
		p.Seq = 10*p.Seq + int64(digit-'0')
	}
	t, err := strconv.ParseUint(string(tag), 16, 32)
	p.Tag = coord.Tag(t)
	return p, err == nil
}
