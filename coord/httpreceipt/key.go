package httpreceipt

import (
	"errors"
	"net/http"
	"strings"
)

const maxKeyLen = 255

// The characters of a key as it stands: visible ones, without those that mean something in a structured
// field, so that a list of keys or a key with parameters is none.
func plain(c rune) bool { return c > ' ' && c < 0x7f && !strings.ContainsRune(`"\,;`, c) }

// ParseKey returns the Idempotency-Key of a request: by the draft a string in quotes, such as
// "8e03978e-40d5-43e8-bc93-6894a57f9324", or the same without them, as most clients send it. It has
// 1–255 visible ASCII characters; in quotes also spaces, and `\"` and `\\` for those two.
func ParseKey(r *http.Request) (string, error) {
	values := r.Header.Values(Header)
	if len(values) != 1 {
		return "", errors.New(Header + " must be there once")
	}
	key, ok := unquote(values[0])
	if !ok || len(key) == 0 || len(key) > maxKeyLen {
		return "", errors.New(Header + " must be one string of 1 to 255 visible ASCII characters")
	}
	return key, nil
}

func unquote(text string) (key string, ok bool) {
	inside, quoted := strings.CutPrefix(text, `"`)
	if !quoted {
		return text, strings.IndexFunc(text, func(c rune) bool { return !plain(c) }) < 0
	}
	inside, ok = strings.CutSuffix(inside, `"`)
	var b strings.Builder
	escaped := false
	for _, c := range []byte(inside) {
		switch {
		case escaped && c != '"' && c != '\\', !escaped && c == '"', c < ' ', c >= 0x7f:
			return "", false
		case !escaped && c == '\\':
			escaped = true
			continue
		}
		escaped = false
		b.WriteByte(c)
	}
	return b.String(), ok && !escaped
}
