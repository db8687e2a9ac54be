package coord

import "context"

type txSeam struct {
	*seam
	driver Tx
	rings  *ringRule
}

// ringRule is what a transaction has done of what belongs together.
type ringRule struct{ changed, fenced bool }

func (s txSeam) PutTask(ctx context.Context, t Task) (stored Task, err error) {
	bad := t.complete()
	err = s.run(ctx, "tx.put_task", t.Name, 1, bad, func() (err error) {
		stored, err = s.driver.PutTask(ctx, t)
		return err
	})
	return stored, err
}

func (s txSeam) DeleteTask(ctx context.Context, name string) error {
	return s.run(ctx, "tx.delete_task", name, 1, taskName(name), func() error { return s.driver.DeleteTask(ctx, name) })
}

func (s txSeam) PauseTask(ctx context.Context, name string, paused bool) error {
	return s.run(ctx, "tx.pause_task", name, 1, taskName(name), func() error {
		return s.driver.PauseTask(ctx, name, paused)
	})
}

func (s txSeam) Trigger(ctx context.Context, name string, o TriggerOptions) (r Run, err error) {
	err = s.run(ctx, "tx.trigger", name, 1, o.check(name), func() (err error) {
		r, err = s.driver.Trigger(ctx, name, o)
		return err
	})
	return r, err
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

func (s txSeam) Report(ctx context.Context, reports ...Report) error {
	reports, bad := completeReports(reports)
	return s.run(ctx, "tx.report", reportsKey(reports), len(reports), bad, func() error {
		if len(reports) == 0 {
			return nil
		}
		return s.driver.Report(ctx, reports...)
	})
}

func (s txSeam) Cancel(ctx context.Context, id RunID) error {
	return s.run(ctx, "tx.cancel", id.key(), 1, nil, func() error { return s.driver.Cancel(ctx, id) })
}

func (s txSeam) Publish(ctx context.Context, events ...NewEvent) error {
	return s.run(ctx, "tx.publish", eventsKey(events), len(events), checkEvents(events), func() error {
		if len(events) == 0 {
			return nil
		}
		return s.driver.Publish(ctx, events...)
	})
}

func (s txSeam) OpenCall(ctx context.Context, n NewCall) (c Call, err error) {
	bad := n.complete()
	err = s.run(ctx, "tx.open_call", n.Target, 1, bad, func() (err error) {
		c, err = s.driver.OpenCall(ctx, n)
		return err
	})
	return c, err
}

func (s txSeam) CancelCall(ctx context.Context, id CallID, reason string) error {
	reason = errorText(reason)
	return s.run(ctx, "tx.cancel_call", string(id), 1, nil, id.known(func() error { return s.driver.CancelCall(ctx, id, reason) }))
}

func (s txSeam) CompleteReceipt(ctx context.Context, held Receipt, o ReceiptOutcome) error {
	bad := invalid(receiptKey("Receipt.Key", held.Key), o.complete())
	return s.run(ctx, "tx.complete_receipt", held.Key, 1, bad, held.held(func() error {
		return s.driver.CompleteReceipt(ctx, held, o)
	}))
}

func (s txSeam) Fence(ctx context.Context, t Term) error {
	err := s.run(ctx, "tx.fence", t.Name, 1, t.check(), t.begun(func() error { return s.driver.Fence(ctx, t) }))
	s.rings.fenced = s.rings.fenced || err == nil
	return err
}

func (s txSeam) ChangeRing(ctx context.Context, c RingChange) (r Ring, err error) {
	err = s.run(ctx, "tx.change_ring", c.Ring, 1, c.check(), func() (err error) {
		r, err = s.driver.ChangeRing(ctx, c)
		return err
	})
	s.rings.changed = s.rings.changed || err == nil && c.Revision > 0
	return r, err
}

func (s txSeam) HoldRing(ctx context.Context, known Ring) (r Ring, err error) {
	err = s.run(ctx, "tx.hold_ring", known.Name, 1, known.check(), func() (err error) {
		r, err = s.driver.HoldRing(ctx, known)
		r.complete(known.Name)
		return err
	})
	return r, err
}

func (s txSeam) Unwrap() any { return s.driver.Unwrap() }
