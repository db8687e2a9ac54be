package check

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"

	"github.com/tandemhq/tandem/app"
	"github.com/tandemhq/tandem/internal/testenv"
)

// loadProject reads the file as Docker Compose does, in a folder with the secrets that its first lines make.
func loadProject(t *testing.T, env types.Mapping) *types.Project {
	t.Helper()
	text, err := os.ReadFile("../compose/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	var commands []string
	for line := range strings.Lines(string(text)) {
		if command, ok := strings.CutPrefix(line, "#   "); ok && !strings.HasPrefix(command, "docker") {
			commands = append(commands, command)
		}
	}
	prepare := exec.CommandContext(t.Context(), "sh", "-euc", strings.Join(commands, ""))
	prepare.Dir = folder
	if output, err := prepare.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", commands, err, output)
	}
	project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: folder, Environment: env,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(folder, "compose.yaml"), Content: text}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if project, err = project.WithServicesEnvironmentResolved(true); err != nil {
		t.Fatal(err)
	}
	return project
}

// service returns a service of a project.
func service(t *testing.T, p *types.Project, name string) types.ServiceConfig {
	t.Helper()
	s, err := p.GetService(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCompose: two replicas that the program would start, that end in time, and that HAProxy alone speaks for.
func TestCompose(t *testing.T) {
	project := loadProject(t, nil)
	if got, want := project.ServiceNames(), []string{"haproxy", "postgres", "tandem-1", "tandem-2"}; !slices.Equal(got, want) {
		t.Fatalf("the services are %v", got)
	}
	database, proxy := service(t, project, "postgres"), service(t, project, "haproxy")
	password, err := os.ReadFile(project.Secrets[database.Secrets[0].Source].File)
	if err != nil {
		t.Fatal(err)
	}
	if file := database.Environment["POSTGRES_PASSWORD_FILE"]; file == nil || *file != "/run/secrets/"+database.Secrets[0].Source {
		t.Errorf("the password of the database is read from %v", file)
	}
	if database.HealthCheck == nil {
		t.Error("nothing tells when the database is up")
	}
	front := proxy.Networks["inner"].Ipv4Address
	known := programSettings(t)
	for _, name := range []string{"tandem-1", "tandem-2"} {
		s := service(t, project, name)
		env := map[string]string{}
		for key, value := range s.Environment {
			if !slices.Contains(known, key) {
				t.Errorf("the program has no setting %s", key)
			}
			env[key] = *value
		}
		config := app.Config{
			Addr: env["TANDEM_ADDR"], PublicURL: env["TANDEM_PUBLIC_URL"], TrustedProxies: strings.Split(env["TANDEM_TRUSTED_PROXIES"], ","),
			DrainGrace: duration(t, env["TANDEM_DRAIN_GRACE"]), ShutdownTimeout: duration(t, env["TANDEM_SHUTDOWN_TIMEOUT"]),
		}
		if err := config.Complete(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.Equal(config.TrustedProxies, []string{front}) {
			t.Errorf("%s trusts %v, and HAProxy is at %s", name, config.TrustedProxies, front)
		}
		if want := "postgres://tandem:" + string(password) + "@postgres/tandem?sslmode=disable"; env["TANDEM_DATABASE_URL"] != want {
			t.Errorf("%s finds the database at %s, want %s", name, env["TANDEM_DATABASE_URL"], want)
		}
		if env["TANDEM_NODE"] != name {
			t.Errorf("%s is called %s", name, env["TANDEM_NODE"])
		}
		if s.StopGracePeriod == nil || time.Duration(*s.StopGracePeriod) < config.ShutdownTimeout+10*time.Second {
			t.Errorf("%s is killed after %v, and may take %v and some seconds", name, s.StopGracePeriod, config.ShutdownTimeout)
		}
		if len(s.Ports) != 0 || !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) {
			t.Errorf("%s is more open than it must be: %+v", name, s)
		}
		if s.DependsOn["postgres"].Condition != types.ServiceConditionHealthy {
			t.Errorf("%s starts before the database", name)
		}
	}
	public := service(t, loadProject(t, types.Mapping{"TANDEM_PUBLIC_URL": "https://chat.example.com"}), "tandem-1")
	if url := public.Environment["TANDEM_PUBLIC_URL"]; *url != "https://chat.example.com" {
		t.Errorf("the public URL is %s", *url)
	}
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// haproxy returns the program.
func haproxy(t *testing.T) string {
	t.Helper()
	path, err := testenv.FindHAProxy()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// balancer runs HAProxy with its configuration, which is for addresses of containers, and returns its URL.
func balancer(t *testing.T, replicas ...string) string {
	t.Helper()
	text, err := os.ReadFile("../compose/haproxy.cfg")
	if err != nil {
		t.Fatal(err)
	}
	for i, replica := range replicas {
		name := "tandem-" + string(rune('1'+i))
		text = regexp.MustCompile(name+":8080").ReplaceAll(text, []byte(replica))
	}
	address := freeAddress(t)
	text = regexp.MustCompile(`bind :8080`).ReplaceAll(text, []byte("bind "+address))
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, "haproxy", nil, "", haproxy(t), "-db", "-f", file)
	return "http://" + address
}

// TestHAProxy: the configuration as it stands is taken, and one with servers that are here asks them as the
// program wants to be asked, and leaves one that is not ready alone while it goes on with what it has begun.
func TestHAProxy(t *testing.T) {
	check := exec.CommandContext(t.Context(), haproxy(t), "-c", "-f", "../compose/haproxy.cfg")
	if output, err := check.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}

	held, release := make(chan struct{}, 1), make(chan struct{})
	draining := make(chan struct{})
	server := func(name string, ready func() bool) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/healthz/ready" && (r.Host != "localhost" || !ready()):
				w.WriteHeader(http.StatusServiceUnavailable)
			case r.URL.Path == "/held" && name == "one":
				held <- struct{}{}
				<-release
			case r.URL.Path == "/" && r.Header.Get("X-Forwarded-For") != "127.0.0.1":
				w.WriteHeader(http.StatusTeapot)
			}
			w.Header().Set("Replica", name)
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	url := balancer(t, server("one", func() bool {
		select {
		case <-draining:
			return false
		default:
			return true
		}
	}), server("two", func() bool { return true }))
	ask := func(method, path string) (replica string, err error) {
		r, err := http.NewRequestWithContext(t.Context(), method, url+path, nil)
		if err != nil {
			return "", err
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return "", err
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return "", errors.New(answer.Status)
		}
		return answer.Header.Get("Replica"), nil
	}
	both := func() bool {
		one, errOne := ask(http.MethodGet, "/")
		two, errTwo := ask(http.MethodGet, "/")
		return errOne == nil && errTwo == nil && one != two
	}
	eventually(t, "both are asked in turn", both)
	answered := make(chan error, 2)
	for range 2 { // one of which goes to the replica that holds it; a GET would be tried again
		go func() { _, err := ask(http.MethodPost, "/held"); answered <- err }()
	}
	<-held
	close(draining)
	eventually(t, "the one that is stopping is left alone", func() bool {
		for range 3 { // in which the other one has not been asked by chance
			if both() {
				return false
			}
		}
		return true
	})
	close(release)
	for range 2 {
		if err := <-answered; err != nil {
			t.Errorf("what it had begun was cut off: %v", err)
		}
	}
}
