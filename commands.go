package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/migrations"
)

type migrateCmd struct {
	Up     migrateUpCmd     `cmd:"" default:"1" help:"Apply what is missing (the default)."`
	Status migrateStatusCmd `cmd:"" help:"List the migrations and when they were applied."`
}

type migrateUpCmd struct{}

// Run applies the migrations.
func (migrateUpCmd) Run(e *env, c *Config) error {
	if err := c.check(); err != nil {
		return err
	}
	db, closeDB, err := openDatabase(e.ctx, c)
	if err != nil {
		return err
	}
	defer closeDB()
	var applied []migrations.Migration
	err = whileAnswering(e.ctx, c, func(ctx context.Context) (err error) {
		applied, err = db.migrate(ctx)
		return err
	})
	for _, m := range applied {
		_, _ = fmt.Fprintf(e.stdout, "applied %s/%s\n", m.Set, m.Name)
	}
	if err == nil && len(applied) == 0 {
		_, _ = fmt.Fprintln(e.stdout, "nothing to apply: the database is up to date")
	}
	return err
}

type migrateStatusCmd struct {
	JSON bool `name:"json" help:"Print JSON, one object per line."`
}

// Run lists the migrations.
func (m migrateStatusCmd) Run(e *env, c *Config) error {
	all, err := m.status(e, c)
	if err != nil {
		return err
	}
	if m.JSON {
		enc := json.NewEncoder(e.stdout)
		for _, s := range all {
			row := map[string]any{"set": s.Set, "version": s.Version, "name": s.Name, "applied_at": nil}
			if !s.Applied.IsZero() {
				row["applied_at"] = s.Applied.UTC()
			}
			if err := enc.Encode(row); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "SET\tMIGRATION\tAPPLIED")
	for _, s := range all {
		applied := "no"
		if !s.Applied.IsZero() {
			applied = s.Applied.UTC().Format(time.RFC3339)
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", s.Set, s.Name, applied)
	}
	return w.Flush()
}

// status looks without making a file.
func (migrateStatusCmd) status(e *env, c *Config) ([]migrations.Migration, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.databaseThere() != nil {
		return known()
	}
	db, closeDB, err := openReadOnly(e.ctx, c)
	if err != nil {
		return nil, err
	}
	defer closeDB()
	return db.status(e.ctx)
}

type userCmd struct {
	Add        userAddCmd        `cmd:"" help:"Create an account."`
	List       userListCmd       `cmd:"" help:"List the accounts."`
	Role       userRoleCmd       `cmd:"" help:"Give somebody another role."`
	Deactivate userDeactivateCmd `cmd:"" help:"End somebody's sessions and tokens, and let them sign in no more."`
	Reactivate userReactivateCmd `cmd:"" help:"Let somebody sign in again."`
	Reset      userResetCmd      `cmd:"" help:"Print a link by which somebody chooses another password."`
	SignOut    userSignOutCmd    `cmd:"" help:"End all sessions and tokens of somebody."`
}

// accounts calls act with what manages accounts. The first use of a database makes its schema; otherwise that
// must be there.
func accounts(e *env, c *Config, first firstUse, act func(*auth.Service, app.Config) error) error {
	if err := c.check(); err != nil {
		return err
	}
	if !first {
		if err := c.databaseThere(); err != nil {
			return err
		}
	}
	a, err := c.application(e.stdout)
	if err != nil {
		return err
	}
	if c.Log == "info" { // what a server tells as it starts is not for here
		c.Log = "warn"
	}
	service, cleanup, err := initializeAccounts(e.ctx, c, a, first, c.logger(e.stderr))
	if err != nil {
		return err
	}
	defer cleanup()
	return act(service, a)
}

// onPerson calls act with the person of that name and tells what was done.
func onPerson(e *env, c *Config, name, done string, act func(*auth.Service, store.User) error) error {
	return accounts(e, c, false, func(service *auth.Service, _ app.Config) error {
		user, err := service.PersonNamed(e.ctx, name)
		if err != nil {
			return err
		}
		if err := act(service, user); err != nil {
			return err
		}
		_, err = fmt.Fprintf(e.stdout, "%s %q\n", done, user.Name)
		return err
	})
}

// operator is who acts at the command line.
var operator store.User

type userListCmd struct {
	JSON bool `name:"json" help:"Print JSON, one object per line."`
}

// Run lists the accounts by name.
func (l userListCmd) Run(e *env, c *Config) error {
	return withReadOnly(e, c, func(d *database) error {
		people, err := d.readStore().People(e.ctx)
		if err != nil {
			return err
		}
		if l.JSON {
			enc := json.NewEncoder(e.stdout)
			for _, p := range people {
				if err := enc.Encode(p); err != nil {
					return err
				}
			}
			return nil
		}
		w := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(w, "NAME\tROLE\tSTATE\tSESSIONS\tTOKENS")
		for _, p := range people {
			state := "active"
			if p.Deactivated {
				state = "deactivated"
			}
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\n", p.Name, p.Role, state, p.Sessions, p.Tokens)
		}
		return w.Flush()
	})
}

type userRoleCmd struct {
	Name string     `arg:"" help:"Whose."`
	Role store.Role `arg:"" enum:"admin,member,guest" help:"admin, member or guest."`
}

// Run changes the role.
func (u userRoleCmd) Run(e *env, c *Config) error {
	return onPerson(e, c, u.Name, "made "+string(u.Role), func(service *auth.Service, user store.User) error {
		return service.SetRole(e.ctx, operator, user.ID, u.Role)
	})
}

type userDeactivateCmd struct {
	Name string `arg:"" help:"Who."`
}

// Run deactivates the account.
func (u userDeactivateCmd) Run(e *env, c *Config) error {
	return onPerson(e, c, u.Name, "deactivated", func(service *auth.Service, user store.User) error {
		return service.SetActive(e.ctx, operator, user.ID, false)
	})
}

type userReactivateCmd struct {
	Name string `arg:"" help:"Who."`
}

// Run reactivates the account.
func (u userReactivateCmd) Run(e *env, c *Config) error {
	return onPerson(e, c, u.Name, "reactivated", func(service *auth.Service, user store.User) error {
		return service.SetActive(e.ctx, operator, user.ID, true)
	})
}

type userSignOutCmd struct {
	Name string `arg:"" help:"Who."`
}

// Run ends the sessions and tokens.
func (u userSignOutCmd) Run(e *env, c *Config) error {
	return onPerson(e, c, u.Name, "signed out", func(service *auth.Service, user store.User) error {
		_, err := service.EndSessionsOf(e.ctx, operator, user.ID)
		return err
	})
}

type userResetCmd struct {
	Name string `arg:"" help:"Whose password."`
}

// Run prints a link.
func (u userResetCmd) Run(e *env, c *Config) error {
	return accounts(e, c, false, func(service *auth.Service, a app.Config) error {
		user, err := service.PersonNamed(e.ctx, u.Name)
		if err != nil {
			return err
		}
		link, secret, err := service.MakeReset(e.ctx, operator, user.ID)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(e.stdout, "%s%s%s\nIt works once, until %s.\n",
			a.PageURL(), auth.ResetPath, secret, link.ExpiresAt.UTC().Format(time.RFC3339))
		return err
	})
}

type userAddCmd struct {
	Name          string `arg:"" help:"Name to sign in with."`
	Admin         bool   `xor:"role" help:"Make it an administrator."`
	Guest         bool   `xor:"role" help:"Make it a guest, who sees nothing but the rooms that they are added to."`
	PasswordStdin bool   `name:"password-stdin" help:"Read the password from standard input; otherwise one is made up and printed."`
}

// Run creates the account. The password is never an argument, which other
// users of the machine could read.
func (u userAddCmd) Run(e *env, c *Config) error {
	if err := c.check(); err != nil {
		return err
	}
	password := ""
	if u.PasswordStdin {
		line, err := bufio.NewReader(io.LimitReader(os.Stdin, 4096)).ReadString('\n')
		if err != nil && err != io.EOF {
			return fmt.Errorf("read the password: %w", err)
		}
		if password = strings.TrimRight(line, "\r\n"); password == "" {
			return errors.New("there is no password on standard input")
		}
	}
	role := store.Member
	switch {
	case u.Admin:
		role = store.Admin
	case u.Guest:
		role = store.Guest
	}
	return accounts(e, c, true, func(service *auth.Service, _ app.Config) error {
		return addUser(e, service, u.Name, password, role)
	})
}

func addUser(e *env, service *auth.Service, name, password string, role store.Role) error {
	user, made, err := service.AddUser(e.ctx, name, password, role)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(e.stdout, "created %s %q\n", user.Role, user.Name)
	if password == "" {
		_, _ = fmt.Fprintf(e.stdout, "password: %s\n", made)
	}
	return nil
}

type versionCmd struct {
	JSON bool `name:"json" help:"Print one JSON object."`
}

// version says what this program was built from.
type version struct {
	Version string `json:"version"`
	Driver  string `json:"driver"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
}

// release and revision are set by the linker in the build of the image, which has no repository to read
// them from.
var release, revision string

// readVersion reads what the Go tool has put into the program.
func readVersion() version {
	v := version{Version: "devel", Driver: driverName, Commit: "unknown", Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	dirty := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v.Commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	v.Commit += dirty
	v.Version, v.Commit = cmp.Or(release, v.Version), cmp.Or(revision, v.Commit)
	return v
}

// Run prints the version.
func (v versionCmd) Run(e *env) error {
	info := readVersion()
	if v.JSON {
		return json.NewEncoder(e.stdout).Encode(info)
	}
	_, err := fmt.Fprintf(e.stdout, "tandem %s\ndriver  %s\ncommit  %s\ngo      %s\n", info.Version, info.Driver, info.Commit, info.Go)
	return err
}
