package main

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// FuzzSettings wants one sentence that names the setting, without a word of a password.
func FuzzSettings(f *testing.F) {
	f.Add("sqlite:tandem.db", "info", int64(time.Second), 10)
	f.Add("postgres://ada:hunter2hunter2@localhost/tandem", "debug,json", int64(0), 0)
	f.Add("memory:", "INFO+1,text", int64(-1), 1001)
	f.Add("mysql://ada:hunter2hunter2@localhost", "loud", int64(time.Second), 1)
	f.Add(":hunter2hunter2@", "info,xml", int64(time.Second), 1)
	f.Add("sqlite:", ",", int64(time.Second), 1)
	f.Fuzz(func(t *testing.T, database, log string, span int64, n int) {
		d := time.Duration(span)
		c := Config{
			DatabaseURL: database, Log: log, Poll: d, Lease: d, ShutdownTimeout: d, SessionIdle: d, SessionLength: d, AuditKeep: d,
			Workers: n, DatabaseConns: n, PersonConns: n,
		}
		err := c.check()
		if err == nil {
			if !strings.HasPrefix(database, driverScheme) || d < time.Second || n < 1 || c.logger(t.Output()) == nil {
				t.Errorf("%+v passes", c)
			}
			return
		}
		wrong, ok := errors.AsType[*settingError](err)
		if !ok || !strings.HasPrefix(wrong.env, "TANDEM_") || !strings.Contains(wrong.reason, "set ") && !strings.Contains(wrong.reason, "use ") {
			t.Errorf("%+v: %#v", c, err)
		}
		if strings.Contains(database, ":hunter2hunter2@") && strings.Contains(err.Error(), "hunter2") && !strings.Contains(log, "hunter2") {
			t.Errorf("%v", err)
		}
	})
}
