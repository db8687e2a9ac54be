package check

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// values are values of the chart, by their paths, such as "stop.preStopSeconds". A last part that is a
// setting holds no dot.
type values map[string]any

// installable are those without which nothing is rendered.
func installable() values {
	return values{
		"image.repository": "registry.example.com/tandem", "image.tag": "1.2.3-pg",
		"publicUrl":                   "https://chat.example.com",
		"secrets.TANDEM_DATABASE_URL": map[string]any{"name": "tandem", "key": "database-url"},
	}
}

// with returns the values with others.
func (v values) with(others values) values {
	all := maps.Clone(v)
	maps.Copy(all, others)
	return all
}

// tree returns the values as Helm takes them.
func (v values) tree() map[string]any {
	root := map[string]any{}
	for key, value := range v {
		at := root
		parts := strings.Split(key, ".")
		for _, part := range parts[:len(parts)-1] {
			next, ok := at[part].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[part] = next
			}
			at = next
		}
		at[parts[len(parts)-1]] = value
	}
	return root
}

// single is one replica on a driver that has no database.
func single(driver string) values {
	v := installable().with(values{"driver": driver, "replicaCount": 1})
	delete(v, "secrets.TANDEM_DATABASE_URL")
	return v
}

// failer is what fails a test, one of package rapid too.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func loadChart(tb testing.TB) *chart.Chart {
	tb.Helper()
	c, err := loader.Load("../helm/tandem")
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// render returns the files that are not empty, by their names.
func render(c *chart.Chart, v values) (map[string]string, error) {
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1.30.0", Major: "1", Minor: "30"}
	release := chartutil.ReleaseOptions{Name: "chat", Namespace: "people", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, v.tree(), release, capabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	named := map[string]string{}
	for name, text := range files {
		if strings.TrimSpace(text) != "" {
			named[path.Base(name)] = text
		}
	}
	return named, nil
}

// kinds are all that the chart may make.
func kinds() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(appsv1.AddToScheme(scheme), autoscalingv2.AddToScheme(scheme), batchv1.AddToScheme(scheme),
		corev1.AddToScheme(scheme), networkingv1.AddToScheme(scheme), policyv1.AddToScheme(scheme))
}

// decode reads a document of YAML as Kubernetes does, and refuses fields that it does not know, and those
// given twice.
func decode(scheme *runtime.Scheme, text string) (objects []runtime.Object, err error) {
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := yaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(text)))
	defer documents.Close()
	for {
		buffer := make([]byte, len(text)+1)
		n, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(buffer[:n])) == 0 {
			continue
		}
		object, _, err := decoder.Decode(buffer[:n], nil, nil)
		if err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
}

// release is what an installation would send to Kubernetes.
type release struct {
	deployment *appsv1.Deployment
	job        *batchv1.Job
	service    *corev1.Service
	account    *corev1.ServiceAccount
	claim      *corev1.PersistentVolumeClaim
	budget     *policyv1.PodDisruptionBudget
	scaler     *autoscalingv2.HorizontalPodAutoscaler
	ingress    *networkingv1.Ingress
	policy     *networkingv1.NetworkPolicy
	notes      string
}

// install renders the chart and decodes all of it.
func install(tb failer, c *chart.Chart, v values) *release {
	tb.Helper()
	files, err := render(c, v)
	if err != nil {
		tb.Fatalf("%v: %v", v, err)
	}
	scheme, err := kinds()
	if err != nil {
		tb.Fatal(err)
	}
	r := &release{notes: files["NOTES.txt"]}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if name == "NOTES.txt" {
			continue
		}
		objects, err := decode(scheme, files[name])
		if err != nil {
			tb.Fatalf("%s with %v: %v\n%s", name, v, err, files[name])
		}
		for _, object := range objects {
			if err := r.take(object); err != nil {
				tb.Fatalf("%s with %v: %v", name, v, err)
			}
		}
	}
	if r.deployment == nil || r.service == nil || r.notes == "" {
		tb.Fatalf("with %v there is no Deployment, Service or note", v)
	}
	return r
}

func (r *release) take(object runtime.Object) error {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return put(&r.deployment, o)
	case *batchv1.Job:
		return put(&r.job, o)
	case *corev1.Service:
		return put(&r.service, o)
	case *corev1.ServiceAccount:
		return put(&r.account, o)
	case *corev1.PersistentVolumeClaim:
		return put(&r.claim, o)
	case *policyv1.PodDisruptionBudget:
		return put(&r.budget, o)
	case *autoscalingv2.HorizontalPodAutoscaler:
		return put(&r.scaler, o)
	case *networkingv1.Ingress:
		return put(&r.ingress, o)
	case *networkingv1.NetworkPolicy:
		return put(&r.policy, o)
	}
	return fmt.Errorf("a %T is not expected", object)
}

func put[T any](place **T, object *T) error {
	if *place != nil {
		return fmt.Errorf("there are two of %T", object)
	}
	*place = object
	return nil
}

// pods are the templates of all pods.
func (r *release) pods() []corev1.PodTemplateSpec {
	pods := []corev1.PodTemplateSpec{r.deployment.Spec.Template}
	if r.job != nil {
		pods = append(pods, r.job.Spec.Template)
	}
	return pods
}

var settingRow = regexp.MustCompile("(?m)^\\| `(TANDEM_[A-Z_]+)` \\|")

// programSettings are those of docs/settings.md, which a test of the program holds to it.
func programSettings(tb testing.TB) []string {
	tb.Helper()
	text, err := os.ReadFile("../../docs/settings.md")
	if err != nil {
		tb.Fatal(err)
	}
	var names []string
	for _, row := range settingRow.FindAllSubmatch(text, -1) {
		names = append(names, string(row[1]))
	}
	if len(names) < 10 {
		tb.Fatalf("docs/settings.md has %d settings only", len(names))
	}
	slices.Sort(names)
	return names
}
