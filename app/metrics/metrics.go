// Package metrics counts what the program does, for Prometheus.
package metrics

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tandemhq/tandem/coord"
)

// Metrics has a registry of its own. It is a [coord.LimiterObserver].
type Metrics struct {
	registry *prometheus.Registry

	operations *prometheus.CounterVec
	items      *prometheus.CounterVec
	seconds    *prometheus.HistogramVec

	Connections  prometheus.Gauge       // open sockets and event streams
	Closes       *prometheus.CounterVec // those that the server closed, by code
	Events       prometheus.Counter     // events handed to them
	Resets       prometheus.Counter     // resets handed to them
	Overflows    prometheus.Counter     // topics left for a while, for too much waited for a client
	Frames       *prometheus.CounterVec // frames from clients, by type
	Topics       prometheus.Gauge       // topics that are followed
	HistoryReads prometheus.Counter     // looks at the store for clients that were behind
	HistoryBytes prometheus.Gauge       // history that is at hand for them
	HTTPRequests *prometheus.CounterVec // by method and status class

	decisions *prometheus.CounterVec // of the limiter, by source and outcome
	degraded  prometheus.Gauge
	outages   prometheus.Counter // of the limiter's store

	lag atomic.Pointer[func() int64]

	jobs     jobMetrics
	database *databaseMetrics

	DirectoryEntries prometheus.Gauge   // connections of this replica in the directory
	DirectoryJoins   prometheus.Counter // times that it became a member of it
}

var _ coord.LimiterObserver = (*Metrics)(nil)

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
			Name: "tandem_socket_connections", Help: "WebSockets and event streams that are open.",
		}),
		Closes: counters("tandem_socket_closes_total", "WebSockets and event streams that the server closed.", "code"),
		Events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_socket_events_total", Help: "Events handed to WebSockets and event streams.",
		}),
		Resets: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_socket_resets_total", Help: "Resets handed to WebSockets and event streams.",
		}),
		Overflows: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_socket_overflows_total",
			Help: "Times that as much waited for a client as may, so that a topic was left until it had taken that.",
		}),
		Topics: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tandem_socket_topics", Help: "Topics that clients of this replica follow.",
		}),
		HistoryReads: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_socket_history_reads_total", Help: "Looks at the store for clients that were behind.",
		}),
		HistoryBytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tandem_socket_history_bytes", Help: "Recent events that are at hand for clients that are behind.",
		}),
		decisions: counters("tandem_limiter_decisions_total",
			"Decisions of the limiter, by who decided and what.", "source", "outcome"),
		degraded: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tandem_limiter_degraded", Help: "1 while this replica limits by itself, for the store is away.",
		}),
		outages: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_limiter_outages_total", Help: "Times that this replica began to limit by itself.",
		}),
		Frames:       counters("tandem_socket_frames_total", "Frames that clients sent.", "type"),
		HTTPRequests: counters("tandem_http_requests_total", "HTTP requests that were answered.", "method", "status"),
		DirectoryEntries: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tandem_directory_entries", Help: "Connections that this replica has in the directory; of all replicas, who is connected.",
		}),
		DirectoryJoins: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_directory_joins_total", Help: "Times that this replica joined the directory: once, and when its lease had ended.",
		}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tandem_build_info", Help: "Always 1.",
		ConstLabels: prometheus.Labels{"version": version, "driver": driver},
	})
	info.Set(1)
	m.registry.MustRegister(m.operations, m.items, m.seconds, m.decisions, m.degraded, m.outages, m.Connections, m.Closes, m.Events, m.Resets,
		m.lagGauge(), m.Overflows, m.Frames, m.Topics, m.HistoryReads, m.HistoryBytes, m.HTTPRequests, m.DirectoryEntries, m.DirectoryJoins, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.jobs = newJobMetrics(m.registry)
	m.database = newDatabaseMetrics(m.registry)
	return m
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// FollowLag makes lag the measure of how many events the replica is behind.
func (m *Metrics) FollowLag(lag func() int64) { m.lag.Store(&lag) }

func (m *Metrics) lagGauge() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tandem_event_lag", Help: "Events that this replica knows of and has not handed out yet.",
	}, func() float64 {
		if lag := m.lag.Load(); lag != nil {
			return float64((*lag)())
		}
		return 0
	})
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

// Decided counts a decision of the limiter.
func (m *Metrics) Decided(_ context.Context, d coord.Decision) {
	outcome := "denied"
	if d.Allowed {
		outcome = "granted"
	}
	m.decisions.WithLabelValues(string(d.Source), outcome).Inc()
}

// Degraded notes that the limiter decides without the store, or no longer does.
func (m *Metrics) Degraded(degraded bool) {
	if !degraded {
		m.degraded.Set(0)
		return
	}
	m.degraded.Set(1)
	m.outages.Inc()
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
