package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

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

// Webhook is how others trigger a task.
type Webhook struct {
	Secret string `json:"secret"` // "whsec_…", which is shown only once
	Path   string `json:"path"`
}

// MakeWebhook gives a task a webhook, or its webhook another secret: the old one is
// good no longer. Errors: ErrAdminOnly, coord.ErrNotFound.
func (s *Service) MakeWebhook(ctx context.Context, by store.User, name string) (Webhook, error) {
	secret := webhook.NewSecret()
	raw, err := webhook.ParseSecret(secret)
	if err != nil {
		return Webhook{}, err
	}
	err = s.changeWebhook(ctx, by, name, func(ctx context.Context, u store.Unit, t coord.Task) error {
		return u.SetWebhook(ctx, int64(t.ID), raw)
	})
	return Webhook{Secret: secret, Path: WebhookPath + url.PathEscape(name)}, err
}

// RemoveWebhook takes a task its webhook. Errors: ErrAdminOnly, coord.ErrNotFound
// when there is none.
func (s *Service) RemoveWebhook(ctx context.Context, by store.User, name string) error {
	return s.changeWebhook(ctx, by, name, func(ctx context.Context, u store.Unit, t coord.Task) error {
		there, err := u.DropWebhook(ctx, int64(t.ID))
		if err == nil && !there {
			err = &store.ReasonError{Err: coord.ErrNotFound, Reason: "the task has no webhook"}
		}
		return err
	})
}

func (s *Service) changeWebhook(
	ctx context.Context, by store.User, name string, change func(context.Context, store.Unit, coord.Task) error,
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
		return u.Coord.Publish(ctx, changed(workOf(t.Payload)))
	})
}

// Deliver queues a run of a task for a request to its webhook. The same id again
// returns the same run and true. A body {"text":"…"} replaces the text of a message.
//
// Errors: those of [webhook.Verify], the same for a task that is not there or has no
// webhook as for a wrong signature; a [*RetryError] around ErrLimited, or around
// coord.ErrConflict while a run has not ended and the task forbids overlap;
// coord.ErrInvalid with the field.
func (s *Service) Deliver(ctx context.Context, name string, header http.Header, body []byte) (Run, bool, error) {
	t, err := s.claimer.Task(ctx, name)
	if err != nil && !errors.Is(err, coord.ErrNotFound) && !errors.Is(err, coord.ErrInvalid) {
		return Run{}, false, err
	}
	secret, now, err := s.store.Webhook(ctx, int64(t.ID))
	if err != nil {
		return Run{}, false, err
	}
	known := secret != nil
	if !known {
		secret = nobodysSecret
	}
	err = webhook.Verify(secret, header, body, now.Time)
	if err == nil && !known { // somebody guessed that there is none
		err = webhook.ErrSignature
	}
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
	payload, err := withText(t, body)
	if err != nil {
		return Run{}, false, err
	}
	o := coord.TriggerOptions{Key: hookKey + header.Get(webhook.HeaderID), Payload: payload}
	r, err := s.trigger(ctx, name, t.ID, o)
	if errors.Is(err, coord.ErrNotFound) { // since then
		err = webhook.ErrSignature
	}
	return viewRun(r, name), r.Duplicate, err
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
