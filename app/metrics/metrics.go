// Package metrics counts what the program does, for Prometheus.
package metrics

import (
	"context"
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tandemhq/tandem/coord"
)

// Metrics has a registry of its own. It is a [coord.Observer].
type Metrics struct {
	registry *prometheus.Registry

	operations *prometheus.CounterVec
	items      *prometheus.CounterVec
	seconds    *prometheus.HistogramVec

	Connections  prometheus.Gauge       // open sockets
	Closes       *prometheus.CounterVec // sockets that the server closed, by code
	Events       prometheus.Counter     // events written to sockets
	Resets       prometheus.Counter     // resets written to sockets
	Frames       *prometheus.CounterVec // frames from clients, by type
	HTTPRequests *prometheus.CounterVec // by method and status class
}

var _ coord.Observer = (*Metrics)(nil)

// New returns metrics that also tell the version and the driver.
func New(version, driver string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		operations: counters("tandem_coord_operations_total",
			"Operations on the coordination store that ended.", "op", "outcome"),
		items: counters("tandem_coord_items_total",
			"Runs, events, decisions and so on that successful operations were about.", "op"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tandem_coord_operation_seconds", Help: "Time that operations on the coordination store took.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"op"}),
		Connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tandem_socket_connections", Help: "WebSockets that are open.",
		}),
		Closes: counters("tandem_socket_closes_total", "WebSockets that the server closed.", "code"),
		Events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_socket_events_total", Help: "Events handed to WebSockets.",
		}),
		Resets: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_socket_resets_total", Help: "Resets handed to WebSockets.",
		}),
		Frames:       counters("tandem_socket_frames_total", "Frames that clients sent.", "type"),
		HTTPRequests: counters("tandem_http_requests_total", "HTTP requests that were answered.", "method", "status"),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tandem_build_info", Help: "Always 1.",
		ConstLabels: prometheus.Labels{"version": version, "driver": driver},
	})
	info.Set(1)
	m.registry.MustRegister(m.operations, m.items, m.seconds, m.Connections, m.Closes, m.Events, m.Resets,
		m.Frames, m.HTTPRequests, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// Observe counts one operation.
func (m *Metrics) Observe(_ context.Context, o coord.Observation) {
	m.operations.WithLabelValues(o.Op, outcome(o.Err)).Inc()
	m.seconds.WithLabelValues(o.Op).Observe(o.Took.Seconds())
	if o.Err == nil {
		m.items.WithLabelValues(o.Op).Add(float64(o.Items))
	}
}

var outcomes = []struct {
	err  error
	name string
}{
	{coord.ErrUnknownOutcome, "unknown_outcome"}, // before ErrUnavailable, which it is too
	{coord.ErrUnavailable, "unavailable"},
	{coord.ErrNotFound, "not_found"},
	{coord.ErrFenced, "fenced"},
	{coord.ErrConflict, "conflict"},
	{coord.ErrExpired, "expired"},
	{coord.ErrBackpressure, "backpressure"},
	{coord.ErrClosed, "closed"},
	{coord.ErrInvalid, "invalid"},
	{coord.ErrReset, "reset"},
	{context.Canceled, "cancelled"},
}

func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o.name
		}
	}
	return "error"
}
