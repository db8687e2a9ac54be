package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// jobMetrics count the turns that this replica had of background jobs.
type jobMetrics struct {
	turns   *prometheus.CounterVec
	done    *prometheus.CounterVec
	seconds *prometheus.CounterVec
	success *prometheus.GaugeVec
	overdue *prometheus.GaugeVec
}

func newJobMetrics(registry *prometheus.Registry) jobMetrics {
	j := jobMetrics{
		turns:   counters("tandem_job_turns_total", "Turns of background jobs that this replica had, by how they ended.", "job", "outcome"),
		done:    counters("tandem_job_done_total", "What these turns have done, in pieces: rows deleted, for most.", "job"),
		seconds: counters("tandem_job_seconds_total", "Time that these turns took.", "job"),
		success: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tandem_job_last_success_timestamp_seconds",
			Help: "When this replica last did a background job well. Replicas take turns: of all, the latest counts.",
		}, []string{"job"}),
		overdue: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tandem_job_overdue",
			Help: "1 while a turn that this replica has of a background job goes on although it was told to end.",
		}, []string{"job"}),
	}
	registry.MustRegister(j.turns, j.done, j.seconds, j.success, j.overdue)
	return j
}

// JobEnded counts a turn of a background job; it is that of jobs.Observer.
func (m *Metrics) JobEnded(job string, done int, took time.Duration, err error) {
	m.jobs.turns.WithLabelValues(job, outcome(err)).Inc()
	m.jobs.done.WithLabelValues(job).Add(float64(done))
	m.jobs.seconds.WithLabelValues(job).Add(took.Seconds())
	if err == nil {
		m.jobs.success.WithLabelValues(job).SetToCurrentTime()
	}
}

// JobOverdue tells of a turn that does not end; it is that of jobs.Observer.
func (m *Metrics) JobOverdue(job string, overdue bool) {
	value := 0.0
	if overdue {
		value = 1
	}
	m.jobs.overdue.WithLabelValues(job).Set(value)
}
