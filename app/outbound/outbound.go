// Package outbound makes HTTP requests to addresses that people gave, without letting them
// reach what only this program can reach: itself, its neighbours, the network that it is in and
// the metadata services of clouds.
//
// The address is checked where the connection is made, after every look-up of a name and for
// each redirect, so that a name can't be checked as one address and called as another. Time and
// size of the whole exchange are bounded. The environment's proxy settings are not used, since a
// proxy would connect for itself.
//
// A network whose own hosts have public addresses is not protected by this: there a firewall
// must be. Neither can a NAT64 prefix of the network's own be known here.
package outbound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"
)

const (
	userAgent = "tandem"

	dialTimeout     = 10 * time.Second // of one address, and of the TLS handshake
	maxAnswerHeader = 64 << 10         // bytes
)

// ErrRefused marks an error that stays the same however often the request is repeated: the
// request is wrong, or leads where tasks may not go. Any other error of [Client.Do] may be over
// the next time.
var ErrRefused = errors.New("refused")

// refusal is an ErrRefused that says nothing but its reason.
type refusal struct{ reason error }

func (r refusal) Error() string   { return r.reason.Error() }
func (r refusal) Unwrap() []error { return []error{ErrRefused, r.reason} }

// Options configure a [Client]. The zero value is good.
type Options struct {
	// Allow are addresses that may be called although they are not public, IPv4 ones written as
	// such. 0.0.0.0/0 and ::/0 together allow everything.
	Allow []netip.Prefix
	// MaxBody is how many bytes of an answer's body are kept. Default 1 MiB.
	MaxBody int64
	// Timeout is for requests that name none. Default 30 s.
	Timeout time.Duration
	// MaxRedirects is how many redirects are followed. Default 5; negative: none.
	MaxRedirects int
	// Resolver looks names up. Default: the system's.
	Resolver *net.Resolver
}

// Client is safe for concurrent use. It keeps no connections: each request is checked anew.
type Client struct {
	transport    *http.Transport
	maxBody      int64
	timeout      time.Duration
	maxRedirects int
}

// New returns a client.
func New(o Options) *Client {
	if o.MaxBody == 0 {
		o.MaxBody = 1 << 20
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.MaxRedirects == 0 {
		o.MaxRedirects = 5
	}
	dialer := &net.Dialer{Timeout: dialTimeout, Control: guard{o.Allow}.control, Resolver: o.Resolver}
	return &Client{
		transport: &http.Transport{
			DialContext:            dialer.DialContext,
			TLSHandshakeTimeout:    dialTimeout,
			DisableKeepAlives:      true,
			DisableCompression:     true, // an answer is kept as it came, so that none grows when unpacked
			MaxResponseHeaderBytes: maxAnswerHeader,
		},
		maxBody:      o.MaxBody,
		timeout:      o.Timeout,
		maxRedirects: max(0, o.MaxRedirects),
	}
}

// Response is the answer to a [Request].
type Response struct {
	Status    int           // 0: there was none
	Took      time.Duration // until the body was read or the request had failed
	Body      []byte        // as it was sent, compressed or not
	Truncated bool          // there is more of the body than was kept
}

// Do makes the request, follows redirects, and reads the answer. Headers and body go to the
// scheme, host and port that the request names, or from http to https there, and never anywhere
// else.
//
// An [ErrRefused] is final. Any other error may be over the next time: the network's, a timeout,
// a broken answer, and one whose status is not expected; what there is of an answer is returned
// beside the error. When ctx ends, the error wraps its [context.Cause]. Errors are made for
// people to read, and tell of a URL the scheme, host and port only.
//
// The server may have carried out a request that failed. A header Idempotency-Key that is the
// same for all attempts lets it notice.
func (c *Client) Do(ctx context.Context, r Request) (Response, error) {
	start := time.Now()
	if err := r.Check(); err != nil {
		return Response{}, refusal{err}
	}
	limit := c.timeout
	if r.TimeoutSeconds > 0 {
		limit = time.Duration(r.TimeoutSeconds) * time.Second
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("there was no complete answer within %v", limit))
	defer cancel()
	response, err := c.exchange(ctx, r)
	response.Took = time.Since(start)
	return response, err
}

func (c *Client) exchange(ctx context.Context, r Request) (Response, error) {
	first, err := r.first(ctx)
	if err != nil {
		return Response{}, refusal{err}
	}
	req := first
	failed := func(err error) error {
		from, to := origin(first.URL), origin(req.URL)
		if from != to {
			from += ", redirected to " + to
		}
		return fmt.Errorf("%s %s: %w", r.method(), from, err)
	}
	for followed := 0; ; followed++ {
		answer, err := c.transport.RoundTrip(req)
		if err != nil {
			return Response{}, failed(plain(ctx, err))
		}
		expected := r.expects(answer.StatusCode)
		var following *http.Request
		if !expected {
			following, err = next(req, answer)
		}
		if err == nil && following == nil {
			response, err := c.read(ctx, answer)
			if err == nil && !expected {
				err = r.unexpected(req, answer)
			}
			if err != nil {
				err = failed(err)
			}
			return response, err
		}
		_ = answer.Body.Close() // nothing in it is wanted
		if err == nil && followed == c.maxRedirects {
			err = fmt.Errorf("gave up after %d redirects", followed)
		}
		if err != nil {
			return Response{Status: answer.StatusCode}, failed(err)
		}
		req = following
	}
}

// read reads what is kept of the body, and closes it.
func (c *Client) read(ctx context.Context, answer *http.Response) (Response, error) {
	defer func() { _ = answer.Body.Close() }()
	response := Response{Status: answer.StatusCode}
	if response.Status < http.StatusOK {
		return response, nil // a connection that speaks something else now, and may do so for ever
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, c.maxBody+1))
	if err != nil {
		err = fmt.Errorf("the answer %s broke off: %w", statusText(answer), plain(ctx, err))
	}
	response.Truncated = int64(len(body)) > c.maxBody
	response.Body = body[:min(int64(len(body)), c.maxBody)]
	return response, err
}

// plain is an error of the network without the addresses of this machine and its name servers.
func plain(ctx context.Context, err error) error {
	if r, ok := errors.AsType[refusal](err); ok {
		return r
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		switch {
		case lookup.IsNotFound:
			return errors.New("there is no host of that name")
		case lookup.IsTimeout:
			return errors.New("the host's name could not be looked up in time")
		}
		return errors.New("the host's name could not be looked up")
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	return err
}
