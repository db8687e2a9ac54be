package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/tandemhq/tandem/internal/testenv"
)

// lag is after how long what routes to a pod hears of its end.
const lag = 2 * time.Second

// cluster does for one Deployment and its Service what Kubernetes does, with processes for pods.
type cluster struct {
	t          *testing.T
	deployment *appsv1.Deployment
	program    string
	secrets    map[string]string // by "name/key"

	made    int // pods, by the test alone
	probing sync.WaitGroup

	mu        sync.Mutex
	next      int
	endpoints []*pod // to which requests are led, in turn
}

// pod is a process that is started, asked and ended as the Deployment says.
type pod struct {
	*process
	cluster   *cluster
	name      string
	container corev1.Container
	address   string // where its port is on this machine
	ready     chan struct{}
	deleted   chan struct{}
}

// newPod starts a pod. Its environment is that of the container and nothing else; since all pods share this machine,
// its port is another one here.
func (c *cluster) newPod() *pod {
	c.t.Helper()
	c.made++
	p := &pod{
		cluster: c, name: fmt.Sprintf("%s-%d", c.deployment.Name, c.made), container: c.deployment.Spec.Template.Spec.Containers[0],
		address: freeAddress(c.t), ready: make(chan struct{}), deleted: make(chan struct{}),
	}
	p.process = start(c.t, p.name, p.env(), "", c.program, p.container.Args...)
	c.probing.Go(p.probe)
	return p
}

func (p *pod) env() (env []string) {
	t := p.cluster.t
	for _, e := range p.container.Env {
		value := e.Value
		switch from := e.ValueFrom; {
		case from == nil:
		case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.name":
			value = p.name
		case from.SecretKeyRef != nil:
			var ok bool
			if value, ok = p.cluster.secrets[from.SecretKeyRef.Name+"/"+from.SecretKeyRef.Key]; !ok {
				t.Fatalf("%s: there is no such Secret: %+v", e.Name, from.SecretKeyRef)
			}
		default:
			t.Fatalf("%s comes from %+v", e.Name, from)
		}
		if e.Name == "TANDEM_ADDR" {
			if want := ":" + strconv.Itoa(int(portOf(p.container, p.container.ReadinessProbe))); value != want {
				t.Fatalf("the program listens on %s, and is asked at %s", value, want)
			}
			value = p.address
		}
		env = append(env, e.Name+"="+value)
	}
	return env
}

// probe asks the pod as the kubelet does, until it is deleted, and gives it requests once it is ready.
func (p *pod) probe() {
	if !p.watch(p.container.StartupProbe, nil) {
		return
	}
	p.cluster.probing.Go(func() { p.watch(p.container.LivenessProbe, func() {}) })
	p.watch(p.container.ReadinessProbe, sync.OnceFunc(func() {
		p.cluster.lead(p)
		close(p.ready)
	}))
}

// watch makes a probe again and again, and calls success each time that it succeeds; without success, it reports that
// at once. It ends when the pod is deleted. A probe that fails too often fails the test.
func (p *pod) watch(probe *corev1.Probe, success func()) bool {
	t := p.cluster.t
	for failures := int32(0); ; {
		select {
		case <-p.deleted:
			return false
		case <-t.Context().Done():
			return false
		case <-p.Exited():
			t.Errorf("%s ended by itself: %v", p.name, p.Cmd.ProcessState)
			return false
		case <-time.After(time.Duration(probe.PeriodSeconds) * time.Second):
		}
		err := p.answers(probe)
		switch {
		case err == nil && success == nil:
			return true
		case err == nil:
			failures = 0
			success()
		case closed(p.deleted) || t.Context().Err() != nil: // it may have been asked too late
		default:
			if failures++; failures >= probe.FailureThreshold {
				t.Errorf("%s failed its probe of %s: %v", p.name, probe.HTTPGet.Path, err)
				return false
			}
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// answers asks what a probe asks.
func (p *pod) answers(probe *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(p.cluster.t.Context(), time.Duration(probe.TimeoutSeconds)*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+probe.HTTPGet.Path, nil)
	if err != nil {
		return err
	}
	for _, header := range probe.HTTPGet.HTTPHeaders {
		r.Host = header.Value // which is all that the chart sets
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	if answer.StatusCode < 200 || answer.StatusCode > 399 {
		return errors.New(answer.Status)
	}
	return nil
}

// await waits until the pod is ready.
func (p *pod) await() {
	p.cluster.t.Helper()
	select {
	case <-p.ready:
	case <-time.After(patience):
		p.cluster.t.Fatalf("%s does not get ready", p.name)
	}
}

// delete ends the pod: requests go elsewhere after a while, and meanwhile it passes through its hook and its signal.
// After the grace period it would be killed.
func (p *pod) delete() {
	t, began := p.cluster.t, time.Now()
	close(p.deleted)
	time.AfterFunc(lag, func() { p.cluster.leave(p) })
	pause(context.WithoutCancel(t.Context()), time.Duration(p.container.Lifecycle.PreStop.Sleep.Seconds)*time.Second)
	_ = p.Signal(syscall.SIGTERM)
	grace := time.Duration(*p.cluster.deployment.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
	select {
	case <-p.Exited():
		t.Logf("%s ended after %v", p.name, time.Since(began).Round(100*time.Millisecond))
		if code := p.Code(); code != 0 {
			t.Errorf("%s ended with code %d", p.name, code)
		}
	case <-time.After(grace - time.Since(began)):
		t.Errorf("%s would have been killed after %v", p.name, grace)
	}
}

func (c *cluster) lead(p *pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endpoints = append(c.endpoints, p)
}

func (c *cluster) leave(p *pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endpoints = slices.DeleteFunc(c.endpoints, func(other *pod) bool { return other == p })
}

// service starts what leads requests to the pods, and returns its URL. It tries none again.
func (c *cluster) service() string {
	server := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetXForwarded()
			c.mu.Lock()
			defer c.mu.Unlock()
			if len(c.endpoints) > 0 {
				c.next++
				r.SetURL(&url.URL{Scheme: "http", Host: c.endpoints[c.next%len(c.endpoints)].address})
			}
			r.Out.Host = r.In.Host
		},
		Transport: &http.Transport{MaxIdleConnsPerHost: 20, DialContext: (&net.Dialer{Timeout: time.Second}).DialContext},
	})
	c.t.Cleanup(server.CloseClientConnections) // WebSockets, for which Close would wait
	return server.URL
}

// addPerson makes the account of the load by the program, as kubectl exec and docker compose exec do.
func addPerson(t *testing.T, program string, env []string) {
	t.Helper()
	p := start(t, "user add", env, password+"\n", program, "user", "add", person, "--admin", "--password-stdin")
	if <-p.Exited(); !p.Cmd.ProcessState.Success() {
		t.Fatalf("user add: %v\n%s", p.Cmd.ProcessState, &p.output)
	}
}

// TestRollingUpdate renders the Deployment, starts three processes from exactly its environment on an empty
// database, all at once, and replaces them as it says, under load: by its strategy, its probes, its hook, its signal
// and its grace period. No request fails, and no client misses an event or sees one twice.
func TestRollingUpdate(t *testing.T) {
	t.Parallel()
	c := &cluster{
		t: t, program: program(t),
		secrets: map[string]string{"tandem/database-url": testenv.NewDatabase(t, "", nil)},
		deployment: install(t, loadChart(t), installable().with(values{
			"replicaCount": 3, "settings.TANDEM_TRUSTED_PROXIES": "127.0.0.1",
		})).deployment,
	}
	t.Cleanup(c.probing.Wait)
	strategy := c.deployment.Spec.Strategy.RollingUpdate
	if strategy.MaxUnavailable.IntValue() != 0 || strategy.MaxSurge.IntValue() != 1 {
		t.Fatalf("this test replaces pods by another strategy than %+v", strategy)
	}
	var old []*pod
	for range *c.deployment.Spec.Replicas {
		old = append(old, c.newPod())
	}
	for _, p := range old {
		p.await()
	}
	addPerson(t, c.program, old[0].env())
	people := startLoad(t, c.service())
	var ending sync.WaitGroup
	for _, p := range old {
		c.newPod().await()
		ending.Go(p.delete)
	}
	ending.Wait()
	people.end()
}

// TestComposeUpdate restarts the two replicas of deploy/compose one after the other, as the head of its file says,
// behind HAProxy with its configuration. No request fails, and no client misses an event or sees one twice.
func TestComposeUpdate(t *testing.T) {
	t.Parallel()
	path, database := program(t), testenv.NewDatabase(t, "", nil)
	project := loadProject(t, nil)
	type replica struct {
		*process
		name, address string
		env           []string
		grace         time.Duration
	}
	var replicas []*replica
	for _, name := range []string{"tandem-1", "tandem-2"} {
		s := service(t, project, name)
		r := &replica{name: name, address: freeAddress(t), grace: time.Duration(*s.StopGracePeriod)}
		for key, value := range s.Environment {
			switch key {
			case "TANDEM_ADDR":
				*value = r.address
			case "TANDEM_DATABASE_URL":
				*value = database
			}
			r.env = append(r.env, key+"="+*value)
		}
		r.process = start(t, name, r.env, "", path, "serve")
		replicas = append(replicas, r)
	}
	front := balancer(t, replicas[0].address, replicas[1].address)
	ready := func(address string) bool {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/healthz/ready", nil)
		if err != nil {
			return false
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}
	for _, r := range replicas {
		eventually(t, r.name+" is ready", func() bool { return ready(r.address) })
	}
	eventually(t, "HAProxy has found them", func() bool { return ready(front[len("http://"):]) })
	addPerson(t, path, replicas[0].env)
	people := startLoad(t, front)
	for _, r := range replicas {
		_ = r.Signal(syscall.SIGTERM)
		select {
		case <-r.Exited():
		case <-time.After(r.grace):
			t.Fatalf("%s would have been killed after %v", r.name, r.grace)
		}
		r.process = start(t, r.name, r.env, "", path, "serve")
		eventually(t, r.name+" is ready again", func() bool { return ready(r.address) })
	}
	people.end()
}
