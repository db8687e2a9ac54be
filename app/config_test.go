package app

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/tandemhq/tandem/coord"
)

func TestConfig(t *testing.T) {
	for _, test := range []struct {
		config Config
		field  string // "": it is good
	}{
		{Config{}, ""},
		{Config{Addr: "[::1]:0"}, ""},
		{Config{Addr: "localhost:80", PublicURL: "http://127.0.0.1:9000/"}, ""},
		{Config{Addr: ":8080", PublicURL: "https://chat.example.com"}, ""},
		{Config{Addr: "8080"}, "Addr"},
		{Config{Addr: ":8080"}, "PublicURL"},
		{Config{Addr: "192.0.2.1:8080"}, "PublicURL"},
		{Config{PublicURL: "http://chat.example.com"}, "PublicURL"},
		{Config{PublicURL: "https://chat.example.com/tandem"}, "PublicURL"},
		{Config{PublicURL: "chat.example.com"}, "PublicURL"},
		{Config{Origins: []string{"https://a.example", "ftp://b.example"}}, "Origins"},
		{Config{Endpoints: []string{"https://a.example", "wss://b.example"}}, "Endpoints"},
		{Config{TrustedProxies: []string{"10.0.0.0/8", "::1"}}, ""},
		{Config{TrustedProxies: []string{"proxy"}}, "TrustedProxies"},
		{Config{HTTPTasksAllow: []string{"10.0.0.0/8", "::1", "127.0.0.1"}}, ""},
		{Config{HTTPTasksAllow: []string{"10.0.0.0/8", "intranet"}}, "HTTPTasksAllow"},
		{Config{HTTPTasksAllow: []string{"::ffff:10.0.0.0/104"}}, "HTTPTasksAllow"},
		{Config{HTTPTasksAllow: []string{"fe80::1%eth0"}}, "HTTPTasksAllow"},
		{Config{DrainGrace: 20 * time.Second}, "DrainGrace"},
	} {
		err := test.config.Complete()
		bad, _ := errors.AsType[*coord.InvalidError](err)
		switch {
		case test.field == "" && err != nil:
			t.Errorf("%+v: got %v", test.config, err)
		case test.field != "" && (bad == nil || bad.Field != test.field):
			t.Errorf("%+v: got %v, want an error about %s", test.config, err, test.field)
		}
	}
}

func TestOriginAllowed(t *testing.T) {
	local := Config{}
	public := Config{PublicURL: "https://chat.example.com", Origins: []string{"https://other.example"}}
	for _, test := range []struct {
		config       Config
		host, origin string
		want         bool
	}{
		{local, "127.0.0.1:8080", "http://127.0.0.1:8080", true},
		{local, "localhost:8080", "http://localhost:8080", true},
		{local, "[::1]:8080", "http://[::1]:8080", true},
		{local, "127.0.0.1:8080", "", true},
		{local, "127.0.0.1:8080", "http://127.0.0.1:9999", false},
		{local, "rebound.example:8080", "http://rebound.example:8080", false},
		{local, "127.0.0.1:8080", "null", false},
		{public, "chat.example.com", "https://chat.example.com", true},
		{public, "chat.example.com", "https://other.example", true},
		{public, "127.0.0.1:8080", "http://127.0.0.1:8080", false},
		{public, "chat.example.com", "http://chat.example.com", false},
		{public, "chat.example.com", "https://chat.example.com.evil.example", false},
	} {
		r := &http.Request{Host: test.host, Header: http.Header{}}
		if test.origin != "" {
			r.Header.Set("Origin", test.origin)
		}
		if got := test.config.OriginAllowed(r); got != test.want {
			t.Errorf("%q at %q: got %v", test.origin, test.host, got)
		}
	}
}
