package webhook_test

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandemhq/tandem/app/webhook"
)

// The example that the libraries of the specification test themselves with.
const (
	exampleSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	exampleID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	exampleTime      = 1614265330
	exampleBody      = `{"test": 2432232314}`
	exampleSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

func secret(t testing.TB, s string) []byte {
	t.Helper()
	b, err := webhook.ParseSecret(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func headers(id, stamp, signature string) http.Header {
	h := http.Header{}
	h.Set(webhook.HeaderID, id)
	h.Set(webhook.HeaderTimestamp, stamp)
	h.Set(webhook.HeaderSignature, signature)
	return h
}

func TestVectors(t *testing.T) {
	for _, test := range []struct {
		secret, id string
		at         int64
		body, want string
	}{
		{exampleSecret, exampleID, exampleTime, exampleBody, exampleSignature},
		// These two were made with openssl dgst -sha256 -mac HMAC.
		{exampleSecret, "msg_1", 1800000000, "", "v1,xw6fnRyRSIG708mYLzprR1VB44Mn91lw4/Tb2R8BoPM="},
		{
			"whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("tandem--", 8))),
			"evt-ü", 1, "\x00\xff\n", "v1,lLAYkTdd7LXs3RvNW7DCejiKQ/bAINxsNQHY/cCBmO4=",
		},
	} {
		got := webhook.Sign(secret(t, test.secret), time.Unix(test.at, 999), test.id, []byte(test.body))
		if got != test.want {
			t.Errorf("%s: got %s, want %s", test.id, got, test.want)
		}
	}
}

func TestVerify(t *testing.T) {
	const stamp = "1614265330"
	other := "v1," + base64.StdEncoding.EncodeToString(make([]byte, 32))
	dotted := webhook.Sign(secret(t, exampleSecret), time.Unix(exampleTime, 0), "msg.1", []byte(exampleBody))
	without := func(name string) http.Header {
		h := headers(exampleID, stamp, exampleSignature)
		h.Del(name)
		return h
	}
	twice := func(name string) http.Header {
		h := headers(exampleID, stamp, exampleSignature)
		h.Add(name, h.Get(name))
		return h
	}
	signed := func(signature string) http.Header { return headers(exampleID, stamp, signature) }
	for _, test := range []struct {
		name   string
		header http.Header
		body   string
		want   error
	}{
		{"as signed", signed(exampleSignature), exampleBody, nil},
		{"several signatures", signed("v1a,x " + other + " " + exampleSignature + " v2,y"), exampleBody, nil},
		{"blanks between them", signed("  " + other + "   " + exampleSignature + " "), exampleBody, nil},

		{"another body", signed(exampleSignature), exampleBody + " ", webhook.ErrSignature},
		{"no body", signed(exampleSignature), "", webhook.ErrSignature},
		{"another id", headers(exampleID+"x", stamp, exampleSignature), exampleBody, webhook.ErrSignature},
		{"another time", headers(exampleID, "1614265331", exampleSignature), exampleBody, webhook.ErrSignature},
		{"another signature", signed(other), exampleBody, webhook.ErrSignature},
		{"several wrong ones", signed(strings.Repeat(other+" ", 1000)), exampleBody, webhook.ErrSignature},
		{"another version", signed("v2" + exampleSignature[2:]), exampleBody, webhook.ErrSignature},
		{"no version", signed(exampleSignature[3:]), exampleBody, webhook.ErrSignature},
		{"cut short", signed(exampleSignature[:len(exampleSignature)-1]), exampleBody, webhook.ErrSignature},
		{"the version alone", signed("v1,"), exampleBody, webhook.ErrSignature},
		// The last character of this base64 has bits to spare: the bytes are the same.
		{"other base64", signed(exampleSignature[:len(exampleSignature)-2] + "F="), exampleBody, webhook.ErrSignature},
		{"commas between them", signed(other + "," + exampleSignature), exampleBody, webhook.ErrSignature},
		{"blank", signed(" "), exampleBody, webhook.ErrSignature},

		{"no headers", nil, exampleBody, webhook.ErrHeader},
		{"no id", without(webhook.HeaderID), exampleBody, webhook.ErrHeader},
		{"no timestamp", without(webhook.HeaderTimestamp), exampleBody, webhook.ErrHeader},
		{"no signature", without(webhook.HeaderSignature), exampleBody, webhook.ErrHeader},
		{"two ids", twice(webhook.HeaderID), exampleBody, webhook.ErrHeader},
		{"two timestamps", twice(webhook.HeaderTimestamp), exampleBody, webhook.ErrHeader},
		{"two signature headers", twice(webhook.HeaderSignature), exampleBody, webhook.ErrHeader},
		{"empty id", headers("", stamp, exampleSignature), exampleBody, webhook.ErrHeader},
		{"long id", headers(strings.Repeat("x", 201), stamp, exampleSignature), exampleBody, webhook.ErrHeader},
		{"blank in the id", headers("msg 1", stamp, exampleSignature), exampleBody, webhook.ErrHeader},
		{"no ASCII in the id", headers("evt-ü", stamp, exampleSignature), exampleBody, webhook.ErrHeader},
		{"full stop in the id", headers("msg.1", stamp, dotted), exampleBody, webhook.ErrHeader},
		{"a date", headers(exampleID, "2021-02-25T15:02:10Z", exampleSignature), exampleBody, webhook.ErrHeader},
		{"a fraction", headers(exampleID, stamp+".0", exampleSignature), exampleBody, webhook.ErrHeader},
		{"a sign", headers(exampleID, "+"+stamp, exampleSignature), exampleBody, webhook.ErrHeader},
		{"leading zero", headers(exampleID, "0"+stamp, exampleSignature), exampleBody, webhook.ErrHeader},
		{"hexadecimal", headers(exampleID, "0x60379f32", exampleSignature), exampleBody, webhook.ErrHeader},
		{"too large", headers(exampleID, "9223372036854775808", exampleSignature), exampleBody, webhook.ErrHeader},

		{"milliseconds", headers(exampleID, stamp+"000", exampleSignature), exampleBody, webhook.ErrTime},
		{"largest", headers(exampleID, "9223372036854775807", exampleSignature), exampleBody, webhook.ErrTime},
		{"smallest", headers(exampleID, "-9223372036854775808", exampleSignature), exampleBody, webhook.ErrTime},
		{"zero", headers(exampleID, "0", exampleSignature), exampleBody, webhook.ErrTime},
	} {
		err := webhook.Verify(secret(t, exampleSecret), test.header, []byte(test.body), time.Unix(exampleTime, 0))
		if !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", test.name, err, test.want)
		}
	}
}

func TestReplayWindow(t *testing.T) {
	for off, want := range map[time.Duration]error{
		0:                                 nil,
		webhook.Window:                    nil,
		-webhook.Window:                   nil,
		webhook.Window + time.Second:      webhook.ErrTime,
		-webhook.Window - time.Nanosecond: webhook.ErrTime,
		time.Hour:                         webhook.ErrTime,
		-time.Hour:                        webhook.ErrTime,
		24 * 365 * 200 * time.Hour:        webhook.ErrTime,
		-24 * 365 * 200 * time.Hour:       webhook.ErrTime,
	} {
		now := time.Unix(exampleTime, 0).Add(off)
		err := webhook.Verify(secret(t, exampleSecret), headers(exampleID, strconv.Itoa(exampleTime), exampleSignature),
			[]byte(exampleBody), now)
		if !errors.Is(err, want) {
			t.Errorf("%v later: got %v, want %v", off, err, want)
		}
	}
}

// While a secret is replaced the sender signs with both.
func TestRotation(t *testing.T) {
	before, after := secret(t, webhook.NewSecret()), secret(t, webhook.NewSecret())
	now, body := time.Unix(exampleTime, 0), []byte("hello")
	h := headers("1", strconv.Itoa(exampleTime),
		webhook.Sign(after, now, "1", body)+" "+webhook.Sign(before, now, "1", body))
	for _, s := range [][]byte{before, after} {
		if err := webhook.Verify(s, h, body, now); err != nil {
			t.Error(err)
		}
	}
	if err := webhook.Verify(secret(t, webhook.NewSecret()), h, body, now); !errors.Is(err, webhook.ErrSignature) {
		t.Errorf("a third secret: got %v", err)
	}
}

func TestSecrets(t *testing.T) {
	one, two := webhook.NewSecret(), webhook.NewSecret()
	if one == two || len(secret(t, one)) != 32 {
		t.Errorf("got %s and %s", one, two)
	}
	base := func(n int) string { return "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for s, good := range map[string]bool{
		exampleSecret: true, base(24): true, base(32): true, base(64): true,
		"": false, "whsec_": false, base(23): false, base(65): false,
		exampleSecret[len("whsec_"):]:            false, // without the prefix
		"whsk_" + exampleSecret[len("whsec_"):]:  false, // of the asymmetric scheme
		"WHSEC_" + exampleSecret[len("whsec_"):]: false,
		exampleSecret + "\n":                     false,
		" " + exampleSecret:                      false,
		strings.TrimRight(base(32), "="):         false,
		strings.Replace(base(32), "A=", "B=", 1): false, // bits to spare
		"whsec_" + base64.URLEncoding.EncodeToString([]byte(strings.Repeat("\xff", 32))): false,
	} {
		got, err := webhook.ParseSecret(s)
		if (err == nil) != good || (got != nil) != good || err != nil && !errors.Is(err, webhook.ErrSecret) {
			t.Errorf("%q: got %d bytes, %v", s, len(got), err)
		}
	}
	now := time.Unix(exampleTime, 0)
	for _, s := range [][]byte{nil, {}, make([]byte, 23), make([]byte, 65)} {
		h := headers("1", strconv.Itoa(exampleTime), webhook.Sign(s, now, "1", nil))
		if err := webhook.Verify(s, h, nil, now); !errors.Is(err, webhook.ErrSecret) {
			t.Errorf("%d bytes: got %v, want a bad secret", len(s), err)
		}
	}
}

// Whatever comes, Verify answers with one of its errors, and accepts nothing but what was signed.
func FuzzVerify(f *testing.F) {
	f.Add(exampleID, "1614265330", exampleSignature, []byte(exampleBody), int64(exampleTime))
	f.Add("msg.1", "-1", "v1, v1,=", []byte("1.2."), int64(0))
	f.Add("", "99999999999999999999", " v1a,x ", []byte(nil), int64(-1))
	f.Add("x", "9223372036854775807", "v1,", []byte{0, 0xff}, int64(exampleTime))
	f.Fuzz(func(t *testing.T, id, stamp, signature string, body []byte, at int64) {
		at %= 1 << 40 // no clock is further off
		key, now := secret(t, exampleSecret), time.Unix(at, 0)
		h := headers(id, stamp, signature)
		err := webhook.Verify(key, h, body, now)
		switch {
		case errors.Is(err, webhook.ErrHeader), errors.Is(err, webhook.ErrTime), errors.Is(err, webhook.ErrSignature):
		case err != nil:
			t.Errorf("got %v", err)
		case id != exampleID || stamp != strconv.Itoa(exampleTime) || string(body) != exampleBody ||
			!strings.Contains(signature, exampleSignature):
			t.Errorf("accepted %q", h)
		}

		// What is signed is good, if its id may be used at all, and not with anything more.
		h = headers(id, strconv.FormatInt(at, 10), webhook.Sign(key, now, id, body))
		err = webhook.Verify(key, h, body, now)
		if err != nil && !errors.Is(err, webhook.ErrHeader) {
			t.Errorf("its own signature: got %v", err)
		}
		again := webhook.Verify(key, h, append(body, 'x'), now)
		if again == nil || err == nil && !errors.Is(again, webhook.ErrSignature) {
			t.Errorf("another body: got %v", again)
		}
	})
}
