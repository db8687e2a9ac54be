package load

import "context"

// Do sends a request of the administrator through HAProxy, once. Anything but a success is an error.
func (l *Load) Do(ctx context.Context, method, path string, body, into any) error {
	return l.caller.Want(ctx, l.admin, method, l.o.Front+path, body, into)
}
