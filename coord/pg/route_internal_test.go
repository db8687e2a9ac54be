package pg

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lib/pq"
)

func TestSeveralServers(t *testing.T) {
	t.Setenv("PGTARGETSESSIONATTRS", "any")
	for text, want := range map[string]string{
		"postgres://u:p@a/db":                            "a:5432",
		"postgres://u:p@a:1/db?sslmode=disable":          "a:1",
		"postgres://u:p@a:1,b:2/db":                      "a:1 b:2",
		"postgresql://u:p%40,x@a:1,b,[::1]:3/db":         "a:1 b:5432 ::1:3",
		"postgres://a:1,b:2?dbname=db&user=u&password=p": "a:1 b:2",
		"postgres://u:p@a,b/db":                          "a:5432 b:5432",
		"postgres://u:p@a,b/db?port=1,2":                 "a:1 b:2",
		"host=a,b port=1,2 dbname=db user=u password=p":  "a:1 b:2",
	} {
		r, err := newRoute(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var got []string
		for _, s := range r.servers {
			got = append(got, fmt.Sprintf("%s:%d", s.Host, s.Port))
			if s.Database != "db" || s.User != "u" || !strings.HasPrefix(s.Password, "p") || s.ConnectTimeout == 0 {
				t.Errorf("%s: %+v", text, s)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
		listen, err := listenText(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		cfg, err := pq.NewConfig(listen)
		if err != nil || cfg.ConnectTimeout == 0 || cfg.Database != "db" || len(cfg.Multi) != len(r.servers)-1 || cfg.Host != r.servers[0].Host {
			t.Errorf("%s: to listen: %q, %+v, %v", text, listen, cfg, err)
		}
	}
	const secret = "hunter2"
	for _, text := range []string{
		"postgres://u:" + secret + "%zz@a:1,b:2/db",
		"postgres://u:" + secret + "/@a/db",
		"postgres://u:" + secret + "@a:1,b:x/db",
		"postgres://u:" + secret + "@a:1,b:2/db?target_session_attrs=standby",
		"postgres://u:" + secret + "@a/db?target_session_attrs=read-only",
	} {
		if _, err := newRoute(text); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v, want an error without the password", text, err)
		}
	}
}
