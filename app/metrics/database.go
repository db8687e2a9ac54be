package metrics

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandemhq/tandem/coord"
)

// databaseMetrics are about the way to the database.
type databaseMetrics struct {
	up        prometheus.Gauge
	listening prometheus.Gauge
	pools     *poolCollector

	mu      sync.Mutex
	success time.Time // of the last probe that succeeded
	polling error     // why other replicas' news is polled for
}

func newDatabaseMetrics(registry *prometheus.Registry) *databaseMetrics {
	d := &databaseMetrics{
		up: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tandem_database_up", Help: "1 while the database answers and can be written to, by the last probe.",
		}),
		listening: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tandem_listening", Help: "1 while other replicas' news is heard of at once, 0 while it is polled for.",
		}),
		pools:   newPoolCollector(),
		success: time.Now(),
	}
	registry.MustRegister(d.up, d.listening, d.pools, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tandem_database_success_age_seconds",
		Help: "Time since a probe of the database succeeded, or since the start of the replica.",
	}, func() float64 {
		d.mu.Lock()
		defer d.mu.Unlock()
		return time.Since(d.success).Seconds()
	}))
	return d
}

var (
	_ coord.ListenerObserver = (*Metrics)(nil)
	_ interface {
		Pool(name string, stats func() sql.DBStats)
	} = (*Metrics)(nil)
)

// Probed notes what came of a probe of the database.
func (m *Metrics) Probed(err error) {
	if err != nil {
		m.database.up.Set(0)
		return
	}
	m.database.up.Set(1)
	m.database.mu.Lock()
	defer m.database.mu.Unlock()
	m.database.success = time.Now()
}

// Listening notes whether other replicas' news is heard of at once.
func (m *Metrics) Listening(_ context.Context, problem error) {
	if problem == nil {
		m.database.listening.Set(1)
	} else {
		m.database.listening.Set(0)
	}
	m.database.mu.Lock()
	defer m.database.mu.Unlock()
	m.database.polling = problem
}

// Polling says why other replicas' news is polled for, nil when it is not.
func (m *Metrics) Polling() error {
	m.database.mu.Lock()
	defer m.database.mu.Unlock()
	if m.database.polling == nil {
		return nil
	}
	return errors.New("other replicas' news arrives by polling: " + m.database.polling.Error())
}

// Pool adds the connections of a pool.
func (m *Metrics) Pool(name string, stats func() sql.DBStats) { m.database.pools.add(name, stats) }

// poolCollector tells of pools of connections when it is asked.
type poolCollector struct {
	connections, most, waits, waited *prometheus.Desc

	mu    sync.Mutex
	pools map[string]func() sql.DBStats
}

func newPoolCollector() *poolCollector {
	return &poolCollector{
		connections: prometheus.NewDesc("tandem_pool_connections", "Connections to the database, by pool and state.",
			[]string{"pool", "state"}, nil),
		most: prometheus.NewDesc("tandem_pool_connections_max", "Most connections of a pool.", []string{"pool"}, nil),
		waits: prometheus.NewDesc("tandem_pool_waits_total", "Times that all connections of a pool were in use and one was waited for.",
			[]string{"pool"}, nil),
		waited: prometheus.NewDesc("tandem_pool_wait_seconds_total", "Time that was spent with that.", []string{"pool"}, nil),
		pools:  map[string]func() sql.DBStats{},
	}
}

func (c *poolCollector) add(name string, stats func() sql.DBStats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pools[name] = stats
}

// Describe implements prometheus.Collector.
func (c *poolCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.connections, c.most, c.waits, c.waited} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (c *poolCollector) Collect(metrics chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, stats := range c.pools {
		s := stats()
		metrics <- prometheus.MustNewConstMetric(c.connections, prometheus.GaugeValue, float64(s.InUse), name, "in_use")
		metrics <- prometheus.MustNewConstMetric(c.connections, prometheus.GaugeValue, float64(s.Idle), name, "idle")
		metrics <- prometheus.MustNewConstMetric(c.most, prometheus.GaugeValue, float64(s.MaxOpenConnections), name)
		metrics <- prometheus.MustNewConstMetric(c.waits, prometheus.CounterValue, float64(s.WaitCount), name)
		metrics <- prometheus.MustNewConstMetric(c.waited, prometheus.CounterValue, s.WaitDuration.Seconds(), name)
	}
}
