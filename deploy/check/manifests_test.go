package check

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/tandemhq/tandem/app"
)

// everything turns all on that driver pg can have, and gives every value.
func everything() values {
	return installable().with(values{
		"image.pullPolicy": "Always", "imagePullSecrets": []any{map[string]any{"name": "registry"}},
		"autoscaling.enabled": true, "autoscaling.minReplicas": 3, "autoscaling.maxReplicas": 9,
		"settings.TANDEM_TRUSTED_PROXIES": "10.0.0.0/8, 192.168.0.0/16", "settings.TANDEM_DATABASE_CONNS": 50,
		"secrets.TANDEM_METRICS_TOKEN": map[string]any{"name": "metrics", "key": "token"},
		"stop.preStopSeconds":          0, "migrateJob.enabled": true,
		"service.type": "LoadBalancer", "service.port": 443, "service.annotations": map[string]any{"a": "b"},
		"ingress.enabled": true, "ingress.className": "nginx", "ingress.tlsSecretName": "certificate",
		"ingress.annotations":   map[string]any{"nginx.ingress.kubernetes.io/proxy-read-timeout": "3600"},
		"networkPolicy.enabled": true,
		"networkPolicy.from": []any{map[string]any{
			"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": "ingress"}},
		}},
		"networkPolicy.egress": []any{map[string]any{"ports": []any{map[string]any{"port": 5432, "protocol": "TCP"}}}},
		"serviceAccount.name":  "people", "podAnnotations": map[string]any{"c": "d"}, "podLabels": map[string]any{"team": "chat"},
		"nodeSelector": map[string]any{"disk": "ssd"},
		"tolerations":  []any{map[string]any{"key": "chat", "operator": "Exists", "effect": "NoSchedule"}},
		"affinity":     map[string]any{"nodeAffinity": map[string]any{}},
	})
}

// sets are many ways to use the chart.
func sets() map[string]values {
	return map[string]values{
		"as it comes":     installable(),
		"everything":      everything(),
		"sqlite":          single("sqlite"),
		"sqlite, claimed": single("sqlite").with(values{"persistence.existingClaim": "old", "persistence.storageClassName": "fast"}),
		"sqlite, fast":    single("sqlite").with(values{"persistence.storageClassName": "fast", "persistence.size": "20Gi"}),
		"memory":          single("memory"),
		"one replica":     installable().with(values{"replicaCount": 1}),
		"to try it":       installable().with(values{"publicUrl": "http://localhost:8080"}),
		"migrated before": installable().with(values{"migrateJob.enabled": true}),
		"with an ingress": installable().with(values{"ingress.enabled": true}),
		"closed":          installable().with(values{"networkPolicy.enabled": true}),
	}
}

// TestManifests renders many sets of values, and holds each to what is right for all.
func TestManifests(t *testing.T) {
	c := loadChart(t)
	for name, v := range sets() {
		t.Run(name, func(t *testing.T) {
			r := install(t, c, v)
			for _, pod := range r.pods() {
				checkPod(t, pod)
			}
			checkSelectors(t, r)
			checkProbes(t, r.deployment.Spec.Template.Spec.Containers[0])
			if r.account != nil && (r.account.AutomountServiceAccountToken == nil || *r.account.AutomountServiceAccountToken) {
				t.Error("the ServiceAccount has its token mounted")
			}
			if r.account == nil && r.deployment.Spec.Template.Spec.ServiceAccountName == "chat-tandem" {
				t.Error("the ServiceAccount of the pods does not exist")
			}
			if !strings.Contains(r.notes, "#setup=") {
				t.Errorf("the notes do not tell where the set-up link is:\n%s", r.notes)
			}
		})
	}
}

// checkPod holds a pod to what the restricted profile of Kubernetes asks for, and more.
func checkPod(t *testing.T, pod corev1.PodTemplateSpec) {
	t.Helper()
	spec := pod.Spec
	if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		t.Error("a token is mounted")
	}
	if spec.EnableServiceLinks == nil || *spec.EnableServiceLinks {
		t.Error("variables of services are set, whose names are like those of settings")
	}
	s := spec.SecurityContext
	if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser != 65532 ||
		s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the security context of the pod is %+v", s)
	}
	for _, c := range spec.Containers {
		s := c.SecurityContext
		if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil ||
			*s.AllowPrivilegeEscalation || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("the security context of %s is %+v", c.Name, s)
		}
		if c.Resources.Requests.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero() {
			t.Errorf("the resources of %s are %+v", c.Name, c.Resources)
		}
		checkEnv(t, c)
	}
}

// checkEnv looks whether the program knows all that it is told, and whether secrets stay where they are.
func checkEnv(t *testing.T, c corev1.Container) {
	t.Helper()
	known := programSettings(t)
	seen := map[string]bool{}
	for _, e := range c.Env {
		if !slices.Contains(known, e.Name) {
			t.Errorf("the program has no setting %s", e.Name)
		}
		if seen[e.Name] {
			t.Errorf("%s is set twice", e.Name)
		}
		seen[e.Name] = true
		if strings.Contains(e.Value, "postgres") {
			t.Errorf("%s is not read from a Secret", e.Name)
		}
	}
	if !seen["TANDEM_DATABASE_URL"] {
		t.Errorf("%s is not told where the database is", c.Name)
	}
}

// checkSelectors looks whether all that selects replicas selects them, and nothing else.
func checkSelectors(t *testing.T, r *release) {
	t.Helper()
	template := r.deployment.Spec.Template
	selectors := map[string]map[string]string{"Deployment": r.deployment.Spec.Selector.MatchLabels, "Service": r.service.Spec.Selector}
	if r.budget != nil {
		selectors["PodDisruptionBudget"] = r.budget.Spec.Selector.MatchLabels
	}
	if r.policy != nil {
		selectors["NetworkPolicy"] = r.policy.Spec.PodSelector.MatchLabels
	}
	for _, s := range template.Spec.TopologySpreadConstraints {
		selectors["spread over "+s.TopologyKey] = s.LabelSelector.MatchLabels
	}
	for what, selector := range selectors {
		if len(selector) == 0 || !labels.SelectorFromSet(selector).Matches(labels.Set(template.Labels)) {
			t.Errorf("%s selects %v, which the replicas %v are not", what, selector, template.Labels)
		}
		if r.job != nil && labels.SelectorFromSet(selector).Matches(labels.Set(r.job.Spec.Template.Labels)) {
			t.Errorf("%s selects the pod of the Job", what)
		}
	}
}

// checkProbes looks whether the probes ask what is there, and have the patience that the program needs.
func checkProbes(t *testing.T, c corev1.Container) {
	t.Helper()
	for what, probe := range map[string]*corev1.Probe{"/healthz/live": c.LivenessProbe, "/healthz/ready": c.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != what {
			t.Fatalf("the probe of %s is %+v", what, probe)
		}
		if portOf(c, probe) == 0 {
			t.Errorf("the probe of %s asks no port of the container", what)
		}
	}
	if c.StartupProbe == nil || c.StartupProbe.HTTPGet.Path != "/healthz/live" {
		t.Fatalf("the startup probe is %+v", c.StartupProbe)
	}
	if most := time.Duration(c.StartupProbe.PeriodSeconds*c.StartupProbe.FailureThreshold) * time.Second; most < 5*time.Minute {
		t.Errorf("migrations may take %v only", most)
	}
	if c.ReadinessProbe.TimeoutSeconds <= 2 {
		t.Errorf("readiness is answered within 2 s, and the probe waits %d s", c.ReadinessProbe.TimeoutSeconds)
	}
}

// portOf returns the port that a probe asks.
func portOf(c corev1.Container, probe *corev1.Probe) int32 {
	for _, port := range c.Ports {
		if port.Name == probe.HTTPGet.Port.StrVal || port.ContainerPort == probe.HTTPGet.Port.IntVal {
			return port.ContainerPort
		}
	}
	return 0
}

// TestTwoReplicas is about what comes of the values that must be given alone.
func TestTwoReplicas(t *testing.T) {
	r := install(t, loadChart(t), installable())
	d := r.deployment.Spec
	if *d.Replicas != 2 || d.Strategy.RollingUpdate == nil || d.Strategy.RollingUpdate.MaxUnavailable.IntValue() != 0 ||
		d.Strategy.RollingUpdate.MaxSurge.IntValue() != 1 {
		t.Errorf("%d replicas are updated by %+v", *d.Replicas, d.Strategy)
	}
	pod := d.Template.Spec
	if near := pod.Affinity.PodAntiAffinity; near == nil || len(near.PreferredDuringSchedulingIgnoredDuringExecution) != 1 ||
		len(near.RequiredDuringSchedulingIgnoredDuringExecution) != 0 {
		t.Errorf("the affinity is %+v", pod.Affinity)
	}
	var spread []string
	for _, s := range pod.TopologySpreadConstraints {
		if s.WhenUnsatisfiable != corev1.ScheduleAnyway {
			t.Errorf("a cluster of one node has no place for two replicas: %+v", s)
		}
		spread = append(spread, s.TopologyKey)
	}
	if !slices.Equal(spread, []string{"kubernetes.io/hostname", "topology.kubernetes.io/zone"}) {
		t.Errorf("replicas are spread over %v", spread)
	}
	if r.budget == nil || r.budget.Spec.MaxUnavailable == nil || r.budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("the budget is %+v", r.budget)
	}
	if pod.Containers[0].Lifecycle.PreStop.Sleep == nil {
		t.Error("there is no pause before the signal")
	}
	if r.job != nil || r.scaler != nil || r.ingress != nil || r.policy != nil || r.claim != nil || len(pod.Volumes) != 0 {
		t.Errorf("there is more than was asked for: %+v", r)
	}
}

// TestOptions is about what values turn on.
func TestOptions(t *testing.T) {
	c := loadChart(t)
	all := install(t, c, everything())
	if all.deployment.Spec.Replicas != nil || all.scaler.Spec.ScaleTargetRef.Name != all.deployment.Name {
		t.Errorf("the autoscaler scales %+v, and the Deployment says %v", all.scaler.Spec, all.deployment.Spec.Replicas)
	}
	if all.job.Annotations["helm.sh/hook"] != "pre-install,pre-upgrade" ||
		!slices.Equal(all.job.Spec.Template.Spec.Containers[0].Args, []string{"migrate"}) {
		t.Errorf("the Job is %+v", all.job)
	}
	if rule := all.ingress.Spec.Rules[0]; rule.Host != "chat.example.com" ||
		rule.HTTP.Paths[0].Backend.Service.Name != all.service.Name || all.ingress.Spec.TLS[0].SecretName != "certificate" {
		t.Errorf("the Ingress is %+v", all.ingress.Spec)
	}
	if len(all.policy.Spec.Ingress[0].From) != 1 || len(all.policy.Spec.Egress) != 1 || len(all.policy.Spec.PolicyTypes) != 2 {
		t.Errorf("the NetworkPolicy is %+v", all.policy.Spec)
	}
	if all.account != nil || all.deployment.Spec.Template.Spec.ServiceAccountName != "people" {
		t.Errorf("the ServiceAccount is %+v", all.account)
	}
	env := envOf(all.deployment.Spec.Template.Spec.Containers[0])
	if env["TANDEM_DATABASE_CONNS"].Value != "50" || env["TANDEM_LOG"].Value != "info,json" ||
		env["TANDEM_METRICS_TOKEN"].ValueFrom.SecretKeyRef.Name != "metrics" {
		t.Errorf("the environment is %+v", env)
	}

	file := install(t, c, single("sqlite"))
	pod := file.deployment.Spec.Template.Spec
	if file.deployment.Spec.Strategy.Type != "Recreate" || file.budget != nil || file.claim == nil ||
		pod.Volumes[0].PersistentVolumeClaim.ClaimName != file.claim.Name || pod.Containers[0].VolumeMounts[0].MountPath != "/data" {
		t.Errorf("SQLite is deployed as %+v", file.deployment.Spec)
	}
	claimed := install(t, c, single("sqlite").with(values{"persistence.existingClaim": "old"}))
	if claimed.claim != nil || claimed.deployment.Spec.Template.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != "old" {
		t.Errorf("the claim that exists is not used: %+v", claimed.deployment.Spec.Template.Spec.Volumes)
	}
	local := install(t, c, installable().with(values{"publicUrl": "http://localhost:8080"}))
	probe := local.deployment.Spec.Template.Spec.Containers[0].ReadinessProbe
	if probe.HTTPGet.HTTPHeaders[0].Value != "localhost:8080" { // the program serves no other host then
		t.Errorf("the probe asks for %+v", probe.HTTPGet.HTTPHeaders)
	}
}

func envOf(c corev1.Container) map[string]corev1.EnvVar {
	env := map[string]corev1.EnvVar{}
	for _, e := range c.Env {
		env[e.Name] = e
	}
	return env
}

// TestEverySettingCanBeGiven: the chart knows each setting of the program, and no other.
func TestEverySettingCanBeGiven(t *testing.T) {
	text, err := os.ReadFile("../helm/tandem/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties map[string]struct{ Properties map[string]json.RawMessage }
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	have := envOf(install(t, loadChart(t), installable()).deployment.Spec.Template.Spec.Containers[0])
	names := map[string]bool{}
	for name := range have {
		names[name] = true
	}
	for _, group := range []string{"settings", "secrets"} {
		for name := range schema.Properties[group].Properties {
			if _, fixed := have[name]; fixed && group == "settings" && name != "TANDEM_LOG" {
				t.Errorf("settings.%s would be set twice", name)
			}
			names[name] = true
		}
	}
	if got, want := slices.Sorted(maps.Keys(names)), programSettings(t); !slices.Equal(got, want) {
		t.Errorf("the chart can set %v, and the program has %v", got, want)
	}
}

// TestGracePeriod: whatever is asked for, a pod is killed only after the program's own end, and what the
// chart takes, the program takes.
func TestGracePeriod(t *testing.T) {
	c := loadChart(t)
	rapid.Check(t, func(t *rapid.T) {
		pause := rapid.Int64Range(0, 300).Draw(t, "preStopSeconds")
		drain := rapid.IntRange(0, 600).Draw(t, "drainGraceSeconds")
		bound := rapid.OneOf(rapid.IntRange(1, 3600), rapid.IntRange(max(1, drain-1), drain+2)).Draw(t, "shutdownTimeoutSeconds")
		v := installable().with(values{"stop.preStopSeconds": pause, "stop.drainGraceSeconds": drain, "stop.shutdownTimeoutSeconds": bound})
		accepted := app.Config{
			PublicURL: "https://chat.example.com", DrainGrace: time.Duration(drain) * time.Second, ShutdownTimeout: time.Duration(bound) * time.Second,
		}
		problem := accepted.Complete()
		if _, err := render(c, v); (err == nil) != (problem == nil) {
			t.Fatalf("the chart says %v, and the program %v", err, problem)
		}
		if problem != nil {
			return
		}
		pod := install(t, c, v).deployment.Spec.Template.Spec
		env := envOf(pod.Containers[0])
		stop, drains := parse(t, env["TANDEM_SHUTDOWN_TIMEOUT"].Value), parse(t, env["TANDEM_DRAIN_GRACE"].Value)
		var before int64
		if hook := pod.Containers[0].Lifecycle; hook != nil {
			before = hook.PreStop.Sleep.Seconds
		}
		if before != pause || stop != accepted.ShutdownTimeout || drains != accepted.DrainGrace {
			t.Fatalf("the stop is %d s, %v and %v", before, drains, stop)
		}
		const closing = 5 * time.Second // which the program gives its pools after the stop
		grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second
		if least := time.Duration(before)*time.Second + stop + closing; grace <= least {
			t.Fatalf("the grace period is %v, and the end may take %v", grace, least)
		}
	})
}

var sentence = regexp.MustCompile(`^[a-zA-Z][^\n]*\.$`)

// TestRefusals: what can't work is refused in one sentence that names the value.
func TestRefusals(t *testing.T) {
	c := loadChart(t)
	without := func(name string) values {
		v := installable()
		delete(v, name)
		return v
	}
	for name, test := range map[string]struct {
		values values
		named  []string
	}{
		"two on SQLite":    {single("sqlite").with(values{"replicaCount": 2}), []string{"replicaCount is 2", "sqlite", "PostgreSQL"}},
		"three in memory":  {single("memory").with(values{"replicaCount": 3}), []string{"replicaCount is 3", "memory", "PostgreSQL"}},
		"a scaled SQLite":  {single("sqlite").with(values{"autoscaling.enabled": true}), []string{"autoscaling.enabled", "PostgreSQL"}},
		"no image":         {without("image.repository"), []string{"image.repository"}},
		"no tag":           {without("image.tag"), []string{"image.tag"}},
		"no URL":           {without("publicUrl"), []string{"publicUrl"}},
		"no database":      {without("secrets.TANDEM_DATABASE_URL"), []string{"secrets.TANDEM_DATABASE_URL"}},
		"SQLite by secret": {installable().with(values{"driver": "sqlite", "replicaCount": 1}), []string{"secrets.TANDEM_DATABASE_URL", "sqlite"}},
		"a long drain": {
			installable().with(values{"stop.drainGraceSeconds": 30}), []string{"stop.drainGraceSeconds is 30", "stop.shutdownTimeoutSeconds"},
		},
		"fewer than least": {
			installable().with(values{"autoscaling.enabled": true, "autoscaling.maxReplicas": 1}), []string{"autoscaling.maxReplicas is 1"},
		},
		"a Job for SQLite": {single("sqlite").with(values{"migrateJob.enabled": true}), []string{"migrateJob.enabled", "sqlite"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := render(c, test.values)
			if err == nil {
				t.Fatal("it was rendered")
			}
			_, said, _ := strings.Cut(err.Error(), "): ")
			if !sentence.MatchString(said) {
				t.Errorf("that is not one sentence: %v", err)
			}
			for _, word := range test.named {
				if !strings.Contains(said, word) {
					t.Errorf("it does not name %q: %s", word, said)
				}
			}
		})
	}
	for path, value := range map[string]any{
		"replicas": 3, "replicaCount": 0, "driver": "mysql", "publicUrl": "http://chat.example.com", "image.name": "x",
		"settings.TANDEM_LOGS": "info", "settings.TANDEM_ADDR": ":9000", "settings.TANDEM_DATABASE_URL": "postgres://open@db/x",
		"secrets.TANDEM_LOG": map[string]any{"name": "a", "key": "b"}, "secrets.TANDEM_LISTEN_URL": "postgres://open@db/x",
		"secrets.TANDEM_METRICS_TOKEN": map[string]any{"name": "a"},
		"stop.preStopSeconds":          "5s", "stop.drainGraceSeconds": 1.5, "service.port": 70000, "persistence.size": "much",
		"resources.memory": "1Gi", "tolerations": "all", "image.pullPolicy": "Sometimes",
	} {
		t.Run(path, func(t *testing.T) {
			_, err := render(c, installable().with(values{path: value}))
			last := path[strings.LastIndex(path, ".")+1:]
			if err == nil || !strings.Contains(err.Error(), last) {
				t.Errorf("%v: got %v", value, err)
			}
		})
	}
}

// TestStrict: the decoder of these tests refuses what Kubernetes would pass over.
func TestStrict(t *testing.T) {
	scheme, err := kinds()
	if err != nil {
		t.Fatal(err)
	}
	const start = "apiVersion: v1\nkind: Service\nmetadata: {name: x}\n"
	if objects, err := decode(scheme, start+"spec: {type: ClusterIP}\n"); err != nil || len(objects) != 1 {
		t.Errorf("a Service: %v, %v", objects, err)
	}
	for _, wrong := range []string{"spec: {typ: ClusterIP}\n", "spec: {ports: many}\n", "kind: Service\n"} {
		if _, err := decode(scheme, start+wrong); err == nil {
			t.Errorf("%q was decoded", wrong)
		}
	}
}

func parse(t *rapid.T, text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
