package tasks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tandemhq/tandem/app/outbound"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
	"github.com/tandemhq/tandem/coord/worker"
)

const (
	idempotencyKey = "Idempotency-Key"

	maxExcerpt      = 2 << 10 // bytes of an answer that are logged
	maxExcerptLines = 100

	// wrapUp is the time for telling what came of a request whose own time is over.
	wrapUp = 10 * time.Second
	// firstWait is how long the telling waits for a store that is away; then twice as long.
	firstWait = 50 * time.Millisecond
)

// Handlers are the handlers of all kinds of tasks, for a worker on [Service.Claimer].
func (s *Service) Handlers() map[string]worker.Handler {
	return map[string]worker.Handler{
		KindMessage: worker.Kind[work](KindMessage).Handler(s.runMessage),
		KindHTTP:    worker.Kind[work](KindHTTP).Handler(s.runHTTP),
	}
}

// runMessage posts the message and ends the run in one unit of work: a worker
// that lost its lease posts nothing.
func (s *Service) runMessage(ctx context.Context, r *worker.Run, w work) error {
	result := coord.Result{Claim: r.Claim, Outcome: coord.Succeed}
	err := s.end(ctx, result, func(ctx context.Context, u store.Unit) error {
		return s.post(ctx, u, r, w, w.Text)
	})
	if errors.Is(err, coord.ErrNotFound) {
		return worker.GiveUp(errors.New(unknownRoom))
	}
	return err
}

// post lets the run say something in its room.
func (s *Service) post(ctx context.Context, u store.Unit, r *worker.Run, w work, text string) error {
	return s.rooms.PostTask(ctx, u, w.RoomID, w.Task, fmt.Sprintf("run:%d", r.Run.ID), text)
}

// end ends a run, whose claim is up to date, in one unit of work with what fn does, and
// returns [worker.ErrFinished].
func (s *Service) end(ctx context.Context, result coord.Result, fn func(context.Context, store.Unit) error) error {
	err := s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		if err := fn(ctx, u); err != nil {
			return err
		}
		return s.live.finish(ctx, u.Coord, []coord.Result{result})
	})
	if err != nil {
		return err
	}
	return worker.ErrFinished
}

// note adds lines to the log of a run and says how much of it is done, unless that is 0.
// It keeps the claim up to date, which nobody else reports on.
func (s *Service) note(ctx context.Context, claim *coord.Claim, progress int, lines ...string) error {
	err := s.live.backend.InTx(ctx, func(ctx context.Context, tx coord.Tx) error {
		return s.live.report(ctx, tx, coord.Report{Claim: *claim, Progress: progress, Lines: lines})
	})
	if err != nil {
		return err
	}
	claim.Run.LogLines += len(lines)
	claim.Run.Progress = max(claim.Run.Progress, progress)
	return nil
}

// runHTTP makes the request, logs what came of it, and posts the result as the task
// says.
func (s *Service) runHTTP(ctx context.Context, r *worker.Run, w work) error {
	if w.HTTP == nil {
		return worker.GiveUp(errors.New("the task does not say what to request"))
	}
	request := withKey(*w.HTTP, r.Run)
	what := request.Method + " " + origin(request.URL)
	claim := r.Claim
	if err := s.note(ctx, &claim, 10, what); err != nil {
		return err
	}
	answer, failure := s.calls.Do(ctx, request)

	cause := context.Cause(ctx)
	overtime := errors.Is(cause, context.DeadlineExceeded)
	switch {
	case failure == nil:
	case overtime:
		failure = fmt.Errorf("%s: the run's time of %v was over", what, r.Run.Timeout)
	case errors.Is(cause, worker.ErrCancelled):
		failure = fmt.Errorf("%s: the run was cancelled", what)
	case errors.Is(cause, worker.ErrDraining):
		failure = fmt.Errorf("%s: cut off, as this replica stops", what)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wrapUp)
	defer cancel()
	lines, progress := answerLines(answer), 100
	if failure != nil {
		lines, progress = append(lines, failure.Error()), 0
	}
	if err := s.note(ctx, &claim, progress, lines...); errors.Is(err, coord.ErrFenced) {
		return err
	} else if err != nil { // what was done is done
		s.log.WarnContext(ctx, "the answer to a task's request was not logged", "run", r.Run.ID, "error", err)
	}
	cutOff := r.Run.AtMostOnce && errors.Is(cause, worker.ErrDraining) // and nobody goes on with it
	switch {
	case failure == nil:
		return s.endHTTP(ctx, r, claim, w, nil, fmt.Sprintf("%s: %s after %v", what, status(answer), rounded(answer.Took)))
	case cause != nil && !overtime && !cutOff:
		return failure
	case cutOff, errors.Is(failure, outbound.ErrRefused):
		failure = worker.GiveUp(failure)
	case r.Run.Attempt < r.Run.Retry.MaxAttempts:
		return failure
	}
	return s.endHTTP(ctx, r, claim, w, failure, "failed: "+failure.Error())
}

// endHTTP ends a run for good, and posts the result if that is wanted. What it returns
// ends the run also when nothing could be posted.
func (s *Service) endHTTP(
	ctx context.Context, r *worker.Run, claim coord.Claim, w work, failure error, text string,
) error {
	if w.Report == ReportNever || w.Report == ReportFailures && failure == nil {
		return failure
	}
	result := coord.Result{Claim: claim, Outcome: coord.Succeed}
	if failure != nil {
		result.Outcome, result.Error = coord.GiveUp, failure.Error()
	}
	var err error
	for wait := firstWait; ; wait *= 2 {
		err = s.end(ctx, result, func(ctx context.Context, u store.Unit) error {
			if err := s.post(ctx, u, r, w, readable(text, coord.MaxErrorText)); !errors.Is(err, coord.ErrNotFound) {
				return err
			}
			return nil // the room is gone
		})
		if !errors.Is(err, coord.ErrUnavailable) || !pause(ctx, wait) {
			break
		}
	}
	if errors.Is(err, worker.ErrFinished) || errors.Is(err, coord.ErrFenced) {
		return err
	}
	s.log.WarnContext(ctx, "the result of a task was not posted", "run", r.Run.ID, "error", err)
	return failure
}

// pause waits, and reports whether ctx lasts longer.
func pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// withKey returns the request with a header by which the receiver can know another
// attempt of the same run, unless it has one.
func withKey(request outbound.Request, r coord.Run) outbound.Request {
	for name := range request.Header {
		if http.CanonicalHeaderKey(name) == idempotencyKey {
			return request
		}
	}
	// The time, since ids begin anew with another database.
	header := map[string]string{idempotencyKey: fmt.Sprintf("%d-%d", r.ID, r.CreatedAt.UnixMicro())}
	maps.Copy(header, request.Header)
	request.Header = header
	return request
}

func status(r outbound.Response) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", r.Status, http.StatusText(r.Status)))
}

func rounded(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// answerLines are what is logged of an answer; none when there was none.
func answerLines(r outbound.Response) []string {
	if r.Status == 0 {
		return nil
	}
	size := fmt.Sprintf("%d bytes", len(r.Body))
	if r.Truncated {
		size = "more than " + size
	}
	lines := []string{fmt.Sprintf("%s after %v, %s", status(r), rounded(r.Took), size)}
	head := r.Body[:min(len(r.Body), maxExcerpt)]
	if len(head) < len(r.Body) {
		head = wholeRunes(head)
	}
	if !isText(head) {
		return lines
	}
	more := r.Truncated || len(head) < len(r.Body)
	text := strings.TrimRight(string(head), "\r\n")
	for line := range strings.Lines(text) {
		if len(lines) > maxExcerptLines {
			more = true
			break
		}
		lines = append(lines, strings.TrimRight(line, "\r\n"))
	}
	if more {
		lines = append(lines, "…")
	}
	return lines
}

// wholeRunes cuts off a character that is there only in part.
func wholeRunes(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i < len(b); i++ {
		if last := b[len(b)-i]; utf8.RuneStart(last) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

func isText(b []byte) bool {
	return utf8.Valid(b) && !strings.ContainsFunc(string(b), func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t'
	})
}
