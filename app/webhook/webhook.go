// Package webhook signs and verifies requests as version 1.0.0 of the Standard Webhooks
// specification says, with its symmetric scheme: HMAC-SHA256 over the id, the time and the body.
// See https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md.
package webhook

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of a webhook.
const (
	// HeaderID names the event. It is the same for all attempts to deliver it, so that it serves
	// as an idempotency key.
	HeaderID = "Webhook-Id"
	// HeaderTimestamp is when this attempt was made, in seconds since 1970.
	HeaderTimestamp = "Webhook-Timestamp"
	// HeaderSignature has one or more signatures, separated by blanks.
	HeaderSignature = "Webhook-Signature"
)

// Window is how far the timestamp may be from the receiver's clock, before or after it.
// A request can be replayed for that long; its id tells.
const Window = 5 * time.Minute

const (
	secretPrefix = "whsec_"
	minSecret    = 24 // bytes
	maxSecret    = 64 // bytes
	newSecret    = 32 // bytes

	version = "v1,"
	maxID   = 195 // bytes: with what a program puts before it, a key of package coord
)

// The errors of this package, to be tested with [errors.Is].
var (
	// ErrHeader: one of the headers is missing or can't be read.
	ErrHeader = errors.New("webhook: bad header")
	// ErrTime: the timestamp is too far from the receiver's clock.
	ErrTime = errors.New("webhook: the timestamp is too far from now")
	// ErrSignature: no signature is that of this id, timestamp and body with this secret.
	ErrSignature = errors.New("webhook: no signature matches")
	// ErrSecret: this is no secret for webhooks.
	ErrSecret = errors.New("webhook: bad secret")
)

// NewSecret returns a secret of 256 random bits as people exchange it, "whsec_" and base64.
func NewSecret() string {
	var b [newSecret]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	return secretPrefix + base64.StdEncoding.EncodeToString(b[:])
}

// ParseSecret returns the bytes of a secret as people exchange it: 24 to 64 of them. Its error
// is ErrSecret and repeats nothing of the secret.
func ParseSecret(s string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(s, secretPrefix)
	if !ok {
		return nil, fmt.Errorf("%w: it does not begin with %s", ErrSecret, secretPrefix)
	}
	secret, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || strings.ContainsAny(encoded, "\r\n") { // which the decoder passes over
		return nil, fmt.Errorf("%w: what follows %s is not base64", ErrSecret, secretPrefix)
	}
	if err := checkSecret(secret); err != nil {
		return nil, err
	}
	return secret, nil
}

func checkSecret(secret []byte) error {
	if len(secret) < minSecret || len(secret) > maxSecret {
		return fmt.Errorf("%w: it has %d bytes, must have %d to %d", ErrSecret, len(secret), minSecret, maxSecret)
	}
	return nil
}

// Sign returns a signature for [HeaderSignature]. The other two headers must be the id and the
// Unix time of at. The id must have no full stop, see [Verify].
func Sign(secret []byte, at time.Time, id string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(mac, "%s.%d.", id, at.Unix()) // a hash never fails
	_, _ = mac.Write(body)
	return version + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// Verify says whether somebody who knows the secret made this request within [Window] of now.
// The body must be as it was received, byte by byte. It does not say whether the request came
// before: that is for the receiver to remember by the id. Its errors are ErrHeader, ErrTime,
// ErrSignature and ErrSecret.
//
// The id must be 1 to 195 bytes of printable ASCII without a full stop: full stops separate what
// is signed, so that with one in the id the beginning of a body could pass for a timestamp.
func Verify(secret []byte, header http.Header, body []byte, now time.Time) error {
	if err := checkSecret(secret); err != nil {
		return err
	}
	id, err := only(header, HeaderID)
	if err != nil {
		return err
	}
	if len(id) > maxID || strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '.' }) {
		return fmt.Errorf("%w: %s must be at most %d printable characters without a full stop", ErrHeader, HeaderID, maxID)
	}
	stamp, err := only(header, HeaderTimestamp)
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || strconv.FormatInt(seconds, 10) != stamp {
		return fmt.Errorf("%w: %s is not a number of seconds", ErrHeader, HeaderTimestamp)
	}
	signatures, err := only(header, HeaderSignature)
	if err != nil {
		return err
	}
	// In whole seconds, since the difference of times that are far apart does not fit a Duration.
	const window = int64(Window / time.Second)
	if early, late := now.Unix()-window, now.Unix()+window; seconds < early || seconds > late {
		return fmt.Errorf("%w: it is %d and must be within %v of %d", ErrTime, seconds, Window, now.Unix())
	}
	want := []byte(Sign(secret, time.Unix(seconds, 0), id, body))
	for got := range strings.SplitSeq(signatures, " ") {
		// In base64 as they came: decoding would let several texts stand for one signature.
		if hmac.Equal([]byte(got), want) {
			return nil
		}
	}
	return ErrSignature
}

// only returns the value of a header that must be there once.
func only(header http.Header, name string) (string, error) {
	values := header.Values(name)
	if len(values) != 1 || values[0] == "" {
		return "", fmt.Errorf("%w: %s must be there once", ErrHeader, name)
	}
	return values[0], nil
}
