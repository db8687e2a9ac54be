package outbound

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandemhq/tandem/coord"
)

// The bounds of a [Request].
const (
	maxURL         = 4096      // bytes
	maxHeaders     = 50        // headers
	maxHeaderBytes = 16 << 10  // bytes of all names and values
	maxBody        = 256 << 10 // bytes
	maxTimeout     = 600       // seconds
	maxExpect      = 50        // statuses
)

// Request is what a task of kind http asks for, as it is stored in the task's payload.
type Request struct {
	// Method is GET, HEAD, POST, PUT, PATCH or DELETE. Empty: GET.
	Method string `json:"method,omitempty"`
	// URL is http or https. A user and password in it are sent as basic authentication, unless
	// there is a header Authorization.
	URL string `json:"url"`
	// Header has one value per name. What belongs to the connection or is computed, as Host and
	// Content-Length, can't be set.
	Header map[string]string `json:"headers,omitempty"`
	// Body is UTF-8, and empty for GET and HEAD.
	Body string `json:"body,omitempty"`
	// ExpectStatus are the statuses that count as success. Empty: 200 to 299. A redirect that
	// is expected is not followed.
	ExpectStatus []int `json:"expect_status,omitempty"`
	// TimeoutSeconds bounds everything, from the look-up of the name to the last byte of the
	// answer. 0: the client's default.
	TimeoutSeconds int `json:"timeout_s,omitempty"`
}

// Check says whether the request can be made at all. Its error is a [*coord.InvalidError] that
// names the field as in JSON. It looks nothing up: where the URL leads is checked when the
// connection is made.
func (r Request) Check() error {
	if !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}, r.method()) {
		return invalid("method", "must be GET, HEAD, POST, PUT, PATCH or DELETE")
	}
	if err := checkURL(r.URL); err != nil {
		return err
	}
	if err := checkHeader(r.Header); err != nil {
		return err
	}
	switch {
	case r.Body != "" && safe(r.method()):
		return invalid("body", "must be empty, a %s has none", r.method())
	case len(r.Body) > maxBody:
		return invalid("body", "has %d bytes, at most %d are allowed", len(r.Body), maxBody)
	case !utf8.ValidString(r.Body):
		return invalid("body", "must be valid UTF-8")
	case len(r.ExpectStatus) > maxExpect:
		return invalid("expect_status", "has %d statuses, at most %d are allowed", len(r.ExpectStatus), maxExpect)
	case r.TimeoutSeconds < 0 || r.TimeoutSeconds > maxTimeout:
		return invalid("timeout_s", "must be between 1 and %d seconds", maxTimeout)
	}
	for _, status := range r.ExpectStatus {
		if status < 200 || status > 599 {
			return invalid("expect_status", "has %d, must be between 200 and 599", status)
		}
	}
	return nil
}

// checkURL never repeats the URL, nor what package url says of it: there may be a password in it.
func checkURL(raw string) error {
	if len(raw) > maxURL {
		return invalid("url", "has %d bytes, at most %d are allowed", len(raw), maxURL)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return invalid("url", "is not a URL such as https://example.com/report")
	}
	if reason := wrongWith(u); reason != "" {
		return invalid("url", "%s", reason)
	}
	return nil
}

// wrongWith says what is wrong with a URL, given in a request or by a redirect.
func wrongWith(u *url.URL) string {
	if u.Scheme != "http" && u.Scheme != "https" {
		return "must begin with http:// or https://"
	}
	if u.Hostname() == "" {
		return "must name a host"
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return "must have a port between 1 and 65535"
		}
	}
	return ""
}

func checkHeader(header map[string]string) error {
	if len(header) > maxHeaders {
		return invalid("headers", "are %d, at most %d are allowed", len(header), maxHeaders)
	}
	bytes := 0
	seen := make(map[string]bool, len(header))
	for name, value := range header {
		key := http.CanonicalHeaderKey(name)
		bytes += len(name) + len(value)
		switch {
		case !token(name):
			return invalid("headers", "%q is not the name of a header", name)
		case seen[key]:
			return invalid("headers", "%s is there twice", key)
		case computed(key):
			return invalid("headers", "%s can't be set, it belongs to the connection", key)
		case !utf8.ValidString(value) || strings.ContainsFunc(value, unprintable):
			return invalid("headers", "the value of %s has characters that no header can have", key)
		}
		seen[key] = true
	}
	if bytes > maxHeaderBytes {
		return invalid("headers", "have %d bytes, at most %d are allowed", bytes, maxHeaderBytes)
	}
	return nil
}

// token is that of RFC 9110, section 5.6.2.
func token(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') &&
			!strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	})
}

func unprintable(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }

// computed reports whether a header is for the transport to set, or is about one hop only.
func computed(key string) bool {
	switch key {
	case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Te", "Trailer", "Upgrade",
		"Expect", "Http2-Settings":
		return true
	}
	return strings.HasPrefix(key, "Proxy-")
}

func (r Request) method() string {
	if r.Method == "" {
		return http.MethodGet
	}
	return r.Method
}

// safe methods change nothing at the server and have no body.
func safe(method string) bool { return method == http.MethodGet || method == http.MethodHead }

func (r Request) expects(status int) bool {
	if len(r.ExpectStatus) == 0 {
		return status >= 200 && status <= 299
	}
	return slices.Contains(r.ExpectStatus, status)
}

// unexpected says what came instead of what was expected.
func (r Request) unexpected(req *http.Request, answer *http.Response) error {
	want := "200 to 299"
	if len(r.ExpectStatus) > 0 {
		list := make([]string, len(r.ExpectStatus))
		for i, s := range r.ExpectStatus {
			list[i] = strconv.Itoa(s)
		}
		want = strings.Join(list, " or ")
	}
	came := statusText(answer)
	if to, err := target(req, answer); err == nil && to != nil {
		came += fmt.Sprintf(" to %s, where a %s is not sent by itself", origin(to), req.Method)
	}
	return fmt.Errorf("expected the status %s, the answer was %s", want, came)
}

func statusText(answer *http.Response) string {
	return strings.TrimSpace(strconv.Itoa(answer.StatusCode) + " " + http.StatusText(answer.StatusCode))
}

// first makes the request to begin with.
func (r Request) first(ctx context.Context) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, r.method(), r.URL, strings.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", userAgent)
	if u := req.URL.User; u != nil {
		password, _ := u.Password()
		req.SetBasicAuth(u.Username(), password)
	}
	for name, value := range r.Header {
		req.Header.Set(name, value)
	}
	return req, nil
}

// next makes the request that follows a redirect, or none when the answer is not one to follow.
// It errs when the redirect leads where no request may go.
//
// If a POST followed 301 and 302 as a GET, as in a browser, a run could succeed though nothing
// was posted. So what may change something at the server follows only 303, which leads to a
// result to look at, and 307 and 308 at the same place.
func next(req *http.Request, answer *http.Response) (*http.Request, error) {
	to, err := target(req, answer)
	if to == nil || err != nil {
		return nil, err
	}
	method, same := req.Method, samePlace(req.URL, to)
	if !safe(method) {
		switch answer.StatusCode {
		case http.StatusMovedPermanently, http.StatusFound:
			return nil, nil
		case http.StatusSeeOther:
			method = http.MethodGet
		default:
			if !same {
				return nil, nil
			}
		}
	}
	following, err := http.NewRequestWithContext(req.Context(), method, to.String(), nil)
	if err != nil {
		return nil, err
	}
	following.Header.Set("User-Agent", userAgent)
	if same {
		following.Header = req.Header.Clone()
	}
	if !safe(method) {
		following.ContentLength, following.GetBody = req.ContentLength, req.GetBody
		following.Body, err = req.GetBody()
		return following, err
	}
	for name := range following.Header {
		if strings.HasPrefix(name, "Content-") {
			following.Header.Del(name)
		}
	}
	return following, nil
}

// target is where a redirect leads; nil when the answer is none or does not say.
func target(req *http.Request, answer *http.Response) (*url.URL, error) {
	switch answer.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
	default:
		return nil, nil
	}
	location := answer.Header.Get("Location")
	if location == "" {
		return nil, nil
	}
	to, err := req.URL.Parse(location)
	if err != nil || len(location) > maxURL {
		return nil, refusal{fmt.Errorf("the answer was %s to what is not a URL", statusText(answer))}
	}
	if reason := wrongWith(to); reason != "" {
		return nil, refusal{fmt.Errorf("the answer was %s to a URL that %s", statusText(answer), reason)}
	}
	return to, nil
}

// samePlace reports whether headers and a body that were given for one URL may be sent to the
// other: the same scheme, host and port, or the same host's default ports from http to https.
func samePlace(from, to *url.URL) bool {
	if !strings.EqualFold(from.Hostname(), to.Hostname()) {
		return false
	}
	if from.Scheme == to.Scheme {
		return port(from) == port(to)
	}
	return to.Scheme == "https" && port(from) == "80" && port(to) == "443"
}

func port(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// origin is all that errors tell of a URL: the user, the path and the query may be secrets.
func origin(u *url.URL) string { return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String() }

func invalid(field, format string, args ...any) error {
	return &coord.InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)}
}
