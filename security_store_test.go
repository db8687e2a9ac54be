//go:build !memory

package main

import (
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
)

// keyed adds an Idempotency-Key to each request that may have one: always the same, or each time another.
type keyed struct {
	http.RoundTripper
	key  string
	sent int
}

func (k *keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPost || r.Method == http.MethodPatch {
		key := k.key
		if key == "" {
			k.sent++
			key = fmt.Sprintf("idempotency-key-%d", k.sent)
		}
		r = r.Clone(r.Context())
		r.Header.Set("Idempotency-Key", key)
	}
	return k.RoundTripper.RoundTrip(r)
}

// stored returns all that a database holds: of SQLite its files, of PostgreSQL its rows as text.
func stored(t *testing.T, database string) string {
	t.Helper()
	var all strings.Builder
	if path, ok := strings.CutPrefix(database, "sqlite:"); ok {
		for _, end := range []string{"", "-wal"} {
			text, err := os.ReadFile(path + end)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = all.Write(text)
		}
		return all.String()
	}
	db, err := sql.Open("postgres", database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	texts := func(query string) (list []string) {
		t.Helper()
		rows, err := db.QueryContext(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var text string
			if err := rows.Scan(&text); err != nil {
				t.Fatal(err)
			}
			list = append(list, text)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		return list
	}
	for _, table := range texts(`SELECT format('%I', relname) FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema::regnamespace`) {
		for _, row := range texts(`SELECT t::text FROM ` + table + ` AS t`) {
			_, _ = all.WriteString(row)
		}
	}
	return all.String()
}

// TestStoreHoldsNoSecret makes all that has a secret, with keys under which answers are kept, and looks
// for the secrets in the database: as they are, as the bytes that they stand for, and in hexadecimal.
func TestStoreHoldsNoSecret(t *testing.T) {
	t.Parallel()
	database := newDatabase(t)
	r := serve(t, "one", database)
	api := r.url + "/api/v1"
	known := map[string]string{"password": password, "new password": "a better battery", "set-up token": tokenOf(r.setupLink())}

	p := newPerson(t)
	p.http.Transport = &keyed{RoundTripper: p.http.Transport}
	p.want(http.StatusCreated, "POST", api+"/setup", credentials{known["set-up token"], adminName, password}, nil)
	var made struct{ Secret, Path, Ticket string }
	p.want(http.StatusCreated, "POST", api+"/tokens", map[string]any{"name": "script", "scopes": []string{"read"}}, &made)
	known["token"] = made.Secret
	p.want(http.StatusCreated, "POST", api+"/invitations", map[string]string{"role": "member"}, &made)
	_, known["invitation"], _ = strings.Cut(made.Path, "=")
	invited := newPerson(t)
	invited.http.Transport = &keyed{RoundTripper: invited.http.Transport}
	var in struct{ User struct{ ID int64 } }
	invited.want(http.StatusCreated, "POST", api+"/invitations/accept", credentials{known["invitation"], "Bob", password}, &in)
	known["cookie of the invited"] = invited.cookie(r.url)
	p.want(http.StatusCreated, "POST", fmt.Sprintf("%s/people/%d/reset", api, in.User.ID), nil, &made)
	_, known["reset link"], _ = strings.Cut(made.Path, "=")
	p.want(http.StatusCreated, "POST", api+"/ws-tickets", nil, &made)
	known["ticket"] = made.Ticket
	p.want(http.StatusNoContent, "POST", api+"/password", map[string]string{"current": password, "password": known["new password"]}, nil)
	known["cookie"] = p.cookie(r.url)
	room := p.makeRoom(r.url, "a room that is there")
	p.want(http.StatusCreated, "POST", api+"/tasks", map[string]any{"name": "hooked", "room_id": room, "text": "hello"}, nil)
	p.want(http.StatusCreated, "POST", api+"/tasks/hooked/webhook", nil, &made)
	// The bytes of this one must be there: a signature is compared with them.
	webhookSecret := strings.TrimPrefix(made.Secret, "whsec_")
	for i := range 10 {
		known[fmt.Sprint("idempotency key ", i+1)] = fmt.Sprintf("idempotency-key-%d", i+1)
	}

	p.want(http.StatusConflict, "POST", api+"/rooms", map[string]string{"name": "a room that is there"}, nil) // is kept too
	text := stored(t, database)
	for _, there := range []string{"a room that is there", adminName, "script"} {
		if !strings.Contains(text, there) {
			t.Errorf("there is no %q: is it the whole?", there)
		}
	}
	if !contains(text, "201 Created") || !contains(text, "409 Conflict") {
		t.Error("no answer is kept")
	}
	for what, secret := range known {
		if len(secret) < 13 {
			t.Errorf("%s is %q, which is too short to be looked for", what, secret)
		}
		bytes, _ := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(secret, "tdm_"))
		if contains(text, secret) || len(bytes) >= 16 && contains(text, string(bytes)) {
			t.Errorf("the database holds the %s", what)
		}
	}
	if contains(text, webhookSecret) {
		t.Error("an answer with the secret of a webhook is kept")
	}
}

// contains looks for a text as it is and in hexadecimal.
func contains(text, what string) bool {
	return strings.Contains(text, what) || strings.Contains(text, hex.EncodeToString([]byte(what)))
}
