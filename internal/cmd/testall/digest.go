package main

import (
	"bytes"
	"io"
	"regexp"
	"strings"
)

// digest passes on what is written and keeps the lines that say what failed, for the end: whoever reads
// only that still learns it.
type digest struct {
	w    io.Writer
	line []byte // which has no end yet
	more int    // lines to keep
	kept []string
	last []string // lines, kept when nothing says what failed
}

const (
	mostKept  = 60 // lines of one step
	mostLast  = 20
	mostBytes = 300
)

// failure begins what is kept, and what follows explains it: where a test failed, or who raced.
var failure = regexp.MustCompile(`^(\s*--- FAIL: |FAIL\s+\S|panic: |fatal error: |SIG[A-Z]+: |WARNING: DATA RACE|\s*found unexpected goroutines)`)

const explained = 4 // lines behind it

func (d *digest) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte{'\n'})
		rest = after
		d.line = append(d.line, part[:min(len(part), mostBytes-min(len(d.line), mostBytes))]...)
		if ended {
			d.take(string(d.line))
			d.line = d.line[:0]
		}
	}
	return d.w.Write(p)
}

func (d *digest) take(line string) {
	switch {
	case failure.MatchString(line):
		d.more = 1 + explained
	case strings.HasPrefix(line, "ok "):
		d.more = 0
	}
	if d.more > 0 && len(d.kept) < mostKept {
		d.kept = append(d.kept, line)
	}
	d.more = max(0, d.more-1)
	d.last = append(d.last, line)
	d.last = d.last[max(0, len(d.last)-mostLast):]
}

// failures returns what was kept since it was asked last, of a step that has failed.
func (d *digest) failures() []string {
	defer func() { d.kept, d.last, d.more = nil, nil, 0 }()
	if len(d.kept) == 0 {
		return d.last
	}
	return d.kept
}
