package coord

import "context"

type txSeam struct {
	*seam
	driver Tx
}

func (s txSeam) PutTask(ctx context.Context, t Task) (stored Task, err error) {
	bad := t.complete()
	err = s.run(ctx, "tx.put_task", t.Name, 1, bad, func() (err error) {
		stored, err = s.driver.PutTask(ctx, t)
		return err
	})
	return stored, err
}

func (s txSeam) Enqueue(ctx context.Context, runs ...NewRun) (queued []Run, err error) {
	runs, bad := completeRuns(runs)
	err = s.run(ctx, "tx.enqueue", "", len(runs), bad, func() (err error) {
		if len(runs) > 0 {
			queued, err = s.driver.Enqueue(ctx, runs...)
		}
		return err
	})
	return queued, err
}

func (s txSeam) Finish(ctx context.Context, results ...Result) error {
	results, bad := completeResults(results)
	return s.run(ctx, "tx.finish", resultsKey(results), len(results), bad, func() error {
		if len(results) == 0 {
			return nil
		}
		return s.driver.Finish(ctx, results...)
	})
}

func (s txSeam) Publish(ctx context.Context, events ...NewEvent) error {
	return s.run(ctx, "tx.publish", eventsKey(events), len(events), checkEvents(events), func() error {
		if len(events) == 0 {
			return nil
		}
		return s.driver.Publish(ctx, events...)
	})
}

func (s txSeam) Unwrap() any { return s.driver.Unwrap() }
