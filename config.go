package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

// Config holds every setting of the program, by flag or by environment. The
// table in docs/settings.md is held to it by a test.
type Config struct {
	Addr            string        `name:"addr" env:"TANDEM_ADDR" default:"127.0.0.1:8080" placeholder:"HOST:PORT" help:"Address to listen on."`
	DatabaseURL     string        `name:"database-url" env:"TANDEM_DATABASE_URL" default:"${database_url}" placeholder:"URL" help:"Database: sqlite:PATH, or postgres://… in the build with -tags pg."`
	ListenURL       string        `name:"listen-url" env:"TANDEM_LISTEN_URL" placeholder:"URL" help:"PostgreSQL directly, for LISTEN and migrations, when the database URL leads to a pooler."`
	Node            string        `name:"node" env:"TANDEM_NODE" placeholder:"NAME" help:"Name of this replica in logs and pages. Default: host name and process id."`
	PublicURL       string        `name:"public-url" env:"TANDEM_PUBLIC_URL" placeholder:"URL" help:"Where browsers find the program, such as https://chat.example.com. Required when the address is not of this machine alone."`
	Origins         []string      `name:"origin" env:"TANDEM_ORIGINS" placeholder:"URL" help:"Further origins that are accepted besides the public URL's."`
	Endpoints       []string      `name:"endpoint" env:"TANDEM_ENDPOINTS" placeholder:"URL" help:"Where pages open their WebSockets, tried in this order. Default: where a page comes from."`
	TrustedProxies  []string      `name:"trusted-proxy" env:"TANDEM_TRUSTED_PROXIES" placeholder:"CIDR" help:"Proxies whose X-Forwarded-For is believed."`
	HTTPTasksAllow  []string      `name:"http-tasks-allow" env:"TANDEM_HTTP_TASKS_ALLOW" placeholder:"CIDR" help:"Addresses that tasks may make requests to although they are not public."`
	MetricsToken    string        `name:"metrics-token" env:"TANDEM_METRICS_TOKEN" placeholder:"SECRET" help:"Bearer token for /metrics. Without one it answers only requests from this machine, and only when the public URL is empty or a loopback address."`
	Log             string        `name:"log" env:"TANDEM_LOG" default:"info" placeholder:"LEVEL[,json]" help:"Least level of log lines, debug, info, warn or error, and ,json for machines."`
	DatabaseConns   int           `name:"database-conns" env:"TANDEM_DATABASE_CONNS" default:"20" placeholder:"N" help:"Most connections of the work pool (PostgreSQL)."`
	SessionIdle     time.Duration `name:"session-idle" env:"TANDEM_SESSION_IDLE" default:"336h" placeholder:"DURATION" help:"How long a browser that is not used stays signed in."`
	SessionLength   time.Duration `name:"session-length" env:"TANDEM_SESSION_LENGTH" default:"2160h" placeholder:"DURATION" help:"How long a browser stays signed in at most."`
	PersonConns     int           `name:"person-connections" env:"TANDEM_PERSON_CONNECTIONS" default:"20" placeholder:"N" help:"Most WebSockets and event streams of one person on this replica."`
	AuditKeep       time.Duration `name:"audit-keep" env:"TANDEM_AUDIT_KEEP" default:"8760h" placeholder:"DURATION" help:"How long lines of the audit log are kept."`
	KEKs            []string      `name:"key-encryption-key" env:"TANDEM_KEY_ENCRYPTION_KEY" placeholder:"KEY" help:"Keys that seal the shared keys and the secrets of webhooks in the database; the first one seals, all open. tandem keys new-kek prints one."`
	JobsOff         []string      `name:"job-off" env:"TANDEM_JOBS_OFF" placeholder:"NAME" help:"Background jobs that this replica does not do, of those that tandem jobs lists."`
	Workers         int           `name:"workers" env:"TANDEM_WORKERS" default:"10" placeholder:"N" help:"Most runs executed at a time."`
	Lease           time.Duration `name:"lease" env:"TANDEM_LEASE" default:"30s" placeholder:"DURATION" help:"How long a run stays with a replica that vanished."`
	Poll            time.Duration `name:"poll" env:"TANDEM_POLL" default:"500ms" placeholder:"DURATION" help:"Longest time until due work is noticed without a hint."`
	StartWait       time.Duration `name:"start-wait" env:"TANDEM_START_WAIT" default:"1m" placeholder:"DURATION" help:"How long to wait at the start for a database that is away."`
	DrainGrace      time.Duration `name:"drain-grace" env:"TANDEM_DRAIN_GRACE" default:"0s" placeholder:"DURATION" help:"How long to go on serving, not ready, after a signal to stop."`
	ShutdownTimeout time.Duration `name:"shutdown-timeout" env:"TANDEM_SHUTDOWN_TIMEOUT" default:"20s" placeholder:"DURATION" help:"Bound on the whole stop, the drain grace included."`
}

// settingError is a setting that is wrong: one sentence that names it and the
// fix.
type settingError struct {
	env    string
	reason string
}

func (e *settingError) Error() string { return e.env + " " + e.reason }

// settingOf are the settings behind the fields that errors of app.Config name.
var settingOf = map[string]string{
	"Addr": "TANDEM_ADDR", "PublicURL": "TANDEM_PUBLIC_URL", "Origins": "TANDEM_ORIGINS", "Endpoints": "TANDEM_ENDPOINTS",
	"SessionIdle": "TANDEM_SESSION_IDLE", "SessionLength": "TANDEM_SESSION_LENGTH", "AuditKeep": "TANDEM_AUDIT_KEEP", "JobsOff": "TANDEM_JOBS_OFF",
	"TrustedProxies": "TANDEM_TRUSTED_PROXIES", "HTTPTasksAllow": "TANDEM_HTTP_TASKS_ALLOW", "DrainGrace": "TANDEM_DRAIN_GRACE",
	"ShutdownTimeout": "TANDEM_SHUTDOWN_TIMEOUT",
}

// check finds what is wrong before anything is opened.
func (c *Config) check() error {
	if err := checkDatabaseURL(c.DatabaseURL); err != nil {
		return err
	}
	if _, err := c.logLevel(); err != nil {
		return err
	}
	if _, err := c.keks(); err != nil {
		return err
	}
	for env, d := range map[string]time.Duration{
		"TANDEM_POLL": c.Poll, "TANDEM_SHUTDOWN_TIMEOUT": c.ShutdownTimeout, "TANDEM_AUDIT_KEEP": c.AuditKeep,
		"TANDEM_SESSION_IDLE": c.SessionIdle, "TANDEM_SESSION_LENGTH": c.SessionLength,
	} {
		if d <= 0 {
			return &settingError{env, fmt.Sprintf("is %v; set a duration above 0, such as 1s", d)}
		}
	}
	if c.StartWait < 0 {
		return &settingError{"TANDEM_START_WAIT", fmt.Sprintf("is %v; set 0s or more", c.StartWait)}
	}
	if c.Lease < time.Second {
		return &settingError{"TANDEM_LEASE", fmt.Sprintf("is %v; set at least 1s", c.Lease)}
	}
	for env, n := range map[string]int{
		"TANDEM_WORKERS": c.Workers, "TANDEM_DATABASE_CONNS": c.DatabaseConns, "TANDEM_PERSON_CONNECTIONS": c.PersonConns,
	} {
		if n < 1 || n > 1000 {
			return &settingError{env, fmt.Sprintf("is %d; set a number from 1 to 1000", n)}
		}
	}
	return nil
}

// checkDatabaseURL tells someone who has the wrong build which one they need.
func checkDatabaseURL(url string) error {
	scheme, rest, _ := strings.Cut(url, ":")
	builds := map[string]string{
		"sqlite":   "the default build (go run . serve)",
		"postgres": "the build with -tags pg (go run -tags pg . serve)", "postgresql": "the build with -tags pg (go run -tags pg . serve)",
		"memory": "the build with -tags memory (go run -tags memory . serve)",
	}
	build, known := builds[scheme]
	switch {
	case scheme == driverScheme || scheme == "postgresql" && driverScheme == "postgres":
		if rest == "" && driverScheme != "memory" {
			return &settingError{"TANDEM_DATABASE_URL", fmt.Sprintf("is %q; set %s", url, driverURLForm)}
		}
		return nil
	case known:
		return &settingError{"TANDEM_DATABASE_URL", fmt.Sprintf("begins with %s: but this is the %s build; use %s, or set %s",
			scheme, driverName, build, driverURLForm)}
	default:
		return &settingError{"TANDEM_DATABASE_URL", fmt.Sprintf("is not a URL of this build (%s); set %s",
			driverName, driverURLForm)}
	}
}

// logLevel reads TANDEM_LOG.
func (c *Config) logLevel() (least slog.Level, err error) {
	level, format, _ := strings.Cut(c.Log, ",")
	if err := least.UnmarshalText([]byte(level)); err != nil || format != "" && format != "json" && format != "text" {
		return 0, &settingError{"TANDEM_LOG", fmt.Sprintf("is %q; set debug, info, warn or error, with ,json behind it for JSON", c.Log)}
	}
	return least, nil
}

// logger writes to w as TANDEM_LOG says, with times in UTC: replicas may be in different zones.
func (c *Config) logger(w io.Writer) *slog.Logger {
	level, _ := c.logLevel() // checked already
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			a.Value = slog.TimeValue(a.Value.Time().UTC())
		}
		return a
	}}
	if strings.HasSuffix(c.Log, ",json") {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// application returns the settings of package app, checked.
func (c *Config) application(output io.Writer) (app.Config, error) {
	a := app.Config{
		Addr: c.Addr, PublicURL: c.PublicURL, Origins: c.Origins, Endpoints: c.Endpoints, TrustedProxies: c.TrustedProxies,
		HTTPTasksAllow: c.HTTPTasksAllow, MetricsToken: c.MetricsToken, Node: c.Node, Version: readVersion().Version, Driver: driverName, Output: output,
		Workers: c.Workers, Lease: c.Lease, Poll: c.Poll, DrainGrace: c.DrainGrace, ShutdownTimeout: c.ShutdownTimeout,
		JobsOff: c.JobsOff,
	}
	a.Auth.Sessions = store.Lifetime{Idle: c.SessionIdle, Absolute: c.SessionLength}
	a.Hub.PerPerson, a.Keep.Audit = c.PersonConns, c.AuditKeep
	if a.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "tandem"
		}
		a.Node = fmt.Sprintf("%s-%d", host, os.Getpid())
	}
	return a, asSetting(a.Complete())
}

// asSetting makes what is wrong with a field of app.Config be wrong with the setting.
func asSetting(err error) error {
	bad, ok := errors.AsType[*coord.InvalidError](err)
	if !ok || settingOf[bad.Field] == "" {
		return err
	}
	reason := bad.Reason
	for field, env := range settingOf {
		reason = strings.ReplaceAll(reason, field, env)
	}
	return &settingError{settingOf[bad.Field], reason}
}
