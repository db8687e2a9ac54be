package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/tandemhq/tandem/app/audit"
	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/app/webhook"
	"github.com/tandemhq/tandem/coord"
)

// WebhookPath begins the paths of webhooks.
const WebhookPath = "/hooks/v1/tasks/"

// webhookLimit is for the requests to one task that are signed correctly: others
// can't use it up.
var webhookLimit = coord.Limit{Rate: 60, Per: time.Minute, Burst: 60}

// nobodysSecret is what is compared with where there is no secret, so that a task
// without one can't be told from a wrong signature.
var nobodysSecret = make([]byte, 32)

const (
	// webhookKeep is how long the answer to a request is kept. Senders try for a day or two.
	webhookKeep = 72 * time.Hour
	// maxOverlap is how long the secret before may be good.
	maxOverlap = 7 * 24 * time.Hour
)

// Webhook is how others trigger a task.
type Webhook struct {
	Secret   string     `json:"secret"` // "whsec_…", which is shown only once
	Path     string     `json:"path"`
	OldUntil store.Time `json:"old_until,omitzero"` // when the secret before ends to be good, if it still is
}

// MakeWebhook gives a task a webhook, or its webhook another secret. The old one is good for
// the overlap longer, at most 7 days, and one before that no longer. Errors: ErrAdminOnly,
// coord.ErrNotFound, coord.ErrInvalid with the field.
func (s *Service) MakeWebhook(ctx context.Context, by store.User, name string, overlap time.Duration) (Webhook, error) {
	if overlap < 0 || overlap > maxOverlap {
		return Webhook{}, invalid("overlap_s", fmt.Sprintf("must be between 0 and %.0f", maxOverlap.Seconds()))
	}
	made := Webhook{Secret: webhook.NewSecret(), Path: WebhookPath + url.PathEscape(name)}
	raw, err := webhook.ParseSecret(made.Secret)
	if err != nil {
		return Webhook{}, err
	}
	var details map[string]any
	if overlap > 0 {
		details = map[string]any{"overlap_s": overlap.Seconds()}
	}
	err = s.changeWebhook(ctx, by, audit.WebhookMade, name, details, func(ctx context.Context, u store.Unit, t coord.Task) (err error) {
		made.OldUntil, err = u.SetWebhook(ctx, int64(t.ID), raw, overlap)
		return err
	})
	return made, err
}

// RemoveWebhook takes a task its webhook. Errors: ErrAdminOnly, coord.ErrNotFound
// when there is none.
func (s *Service) RemoveWebhook(ctx context.Context, by store.User, name string) error {
	return s.changeWebhook(ctx, by, audit.WebhookRemoved, name, nil, func(ctx context.Context, u store.Unit, t coord.Task) error {
		there, err := u.DropWebhook(ctx, int64(t.ID))
		if err == nil && !there {
			err = &store.ReasonError{Err: coord.ErrNotFound, Reason: "the task has no webhook"}
		}
		return err
	})
}

func (s *Service) changeWebhook(
	ctx context.Context, by store.User, action audit.Action, name string, details map[string]any,
	change func(context.Context, store.Unit, coord.Task) error,
) error {
	if by.Role != store.Admin {
		return ErrAdminOnly
	}
	t, err := s.task(ctx, by, name)
	if err != nil {
		return err
	}
	return s.store.InTx(ctx, func(ctx context.Context, u store.Unit) error {
		if err := change(ctx, u, t); err != nil {
			return err
		}
		if err := audit.Write(ctx, u, audit.Entry{By: by, Action: action, Target: name, Details: details}); err != nil {
			return err
		}
		return u.Coord.Publish(ctx, changed(workOf(t.Payload)))
	})
}

// Deliver queues a run of a task for a request to its webhook. A body {"text":"…"}
// replaces the text of a message. The first answer to an id is the one to the same
// request again, on any replica: the run as it was then, and true, or what is wrong with
// the text.
//
// Errors: those of [webhook.Verify], the same for a task that is not there or has no
// webhook as for a wrong signature; a [*RetryError] around ErrLimited, or around
// coord.ErrConflict while a run has not ended and the task forbids overlap, neither of
// which is an answer that is kept; coord.ErrConflict when the id was used for another
// body; coord.ErrInvalid with the field.
func (s *Service) Deliver(ctx context.Context, name string, header http.Header, body []byte) (Run, bool, error) {
	t, err := s.signed(ctx, name, header, body)
	if err != nil {
		return Run{}, false, err
	}
	limit := webhookLimit
	limit.Key = "webhook:" + name
	decision, err := s.limiter.Allow(ctx, limit)
	switch {
	case err != nil:
		return Run{}, false, err
	case !decision.Allowed:
		return Run{}, false, &RetryError{
			Err: ErrLimited, Reason: "too many requests for this task, try again later", After: decision.RetryAfter,
		}
	}
	id := header.Get(webhook.HeaderID)
	known := false // the run, from before answers were kept, or from a replica that vanished before it kept this one
	o, replayed, err := coord.Do(ctx, s.receipts, coord.ReceiptFor{
		Key: fmt.Sprintf("webhook:%d:%s", t.ID, id), Fingerprint: body, Keep: webhookKeep,
	}, func(ctx context.Context, _ coord.Receipt) (answer []byte, err error) {
		answer, known, err = s.deliver(ctx, t, id, body)
		return answer, err
	})
	switch {
	case errors.Is(err, coord.ErrNotFound): // since then
		err = webhook.ErrSignature
	case errors.Is(err, coord.ErrConflict) && !errors.Is(err, coord.ErrTransient):
		err = &store.ReasonError{Err: coord.ErrConflict, Field: "webhook-id", Reason: "was used for another body"}
	case err == nil && o.Error != "":
		refused := new(coord.InvalidError)
		if err = json.Unmarshal(o.Body, refused); err == nil {
			err = refused
		}
	}
	if err != nil {
		return Run{}, false, err
	}
	var r Run
	err = json.Unmarshal(o.Body, &r)
	return r, replayed || known, err
}

// signed returns the task whose webhook a request is for.
func (s *Service) signed(ctx context.Context, name string, header http.Header, body []byte) (coord.Task, error) {
	t, err := s.claimer.Task(ctx, name)
	if err != nil && !errors.Is(err, coord.ErrNotFound) && !errors.Is(err, coord.ErrInvalid) {
		return t, err
	}
	secrets, now, err := s.store.Webhook(ctx, int64(t.ID))
	if err != nil {
		return t, err
	}
	known := len(secrets) > 0
	if !known {
		secrets = [][]byte{nobodysSecret}
	}
	for _, secret := range secrets {
		if err = webhook.Verify(secret, header, body, now.Time); err == nil {
			break
		}
	}
	if err == nil && !known { // somebody guessed that there is none
		err = webhook.ErrSignature
	}
	return t, err
}

// deliver queues the run of an id and returns it as it is kept. Of the errors only what is
// wrong with the text is an answer, and returned with what is kept of it; the others are
// coord.ErrTransient.
func (s *Service) deliver(ctx context.Context, t coord.Task, id string, body []byte) (answer []byte, known bool, err error) {
	payload, err := withText(t, body)
	if refused, ok := errors.AsType[*coord.InvalidError](err); ok {
		answer, err = json.Marshal(refused)
		return answer, false, errors.Join(err, refused)
	}
	var r coord.Run
	if err == nil {
		r, err = s.trigger(ctx, t.Name, t.ID, coord.TriggerOptions{Key: hookKey + id, Payload: payload})
	}
	if err == nil {
		answer, err = json.Marshal(viewRun(r, t.Name))
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", coord.ErrTransient, err)
	}
	return answer, r.Duplicate, err
}

// withText is the payload of a task that posts the text in a request's body; nil:
// its own.
func withText(t coord.Task, body []byte) ([]byte, error) {
	var given struct{ Text *string }
	if json.Unmarshal(body, &given) == nil && given.Text != nil && t.Kind == KindMessage {
		w := workOf(t.Payload)
		w.Text = *given.Text
		if err := rooms.CheckText(w.Text); err != nil {
			return nil, err
		}
		return json.Marshal(w)
	}
	return nil, nil // the body is for somebody else, or for nobody
}
