package httpreceipt

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"

	"github.com/tandemhq/tandem/coord"
)

var (
	errTooLarge = errors.New("the answer is larger than what is kept of one")
	errNoAnswer = errors.New("read a stored answer: it is none")
)

// recorder holds an answer back until it is complete. Its header becomes the client's only when it is
// sent: what a handler has set is no part of a refusal, or of another answer.
type recorder struct {
	client   http.ResponseWriter
	header   http.Header
	status   int
	body     bytes.Buffer
	tooLarge bool
}

func newRecorder(client http.ResponseWriter) *recorder {
	return &recorder{client: client, header: client.Header().Clone()}
}

func (a *recorder) Header() http.Header { return a.header }

func (a *recorder) WriteHeader(status int) {
	if a.status == 0 && status >= 200 { // what comes before an answer is not of it
		a.status = status
	}
}

func (a *recorder) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.body.Len()+len(b) > coord.MaxPayload {
		a.tooLarge = true
		return 0, errTooLarge
	}
	return a.body.Write(b)
}

func (a *recorder) code() int {
	if a.status == 0 {
		return http.StatusOK
	}
	return a.status
}

func (a *recorder) send() {
	header := a.client.Header()
	clear(header)
	maps.Copy(header, a.header)
	a.client.WriteHeader(a.code())
	if a.body.Len() > 0 {
		_, _ = a.client.Write(a.body.Bytes()) // fails when the client is gone
	}
}

// Outcome is an answer as it is stored, for a handler that completes its receipt itself, see [Held]. It
// has the header that is given, whole: no secrets. What is larger than coord.MaxPayload is refused when
// it is stored.
func Outcome(status int, header http.Header, body []byte) coord.ReceiptOutcome {
	return coord.ReceiptOutcome{Body: encode(status, header, body)}
}

// encode writes an answer as HTTP does.
func encode(status int, header http.Header, body []byte) []byte {
	var b bytes.Buffer
	_, _ = fmt.Fprintf(&b, "HTTP/1.1 %03d %s\r\n", status, http.StatusText(status))
	_ = header.Write(&b)
	_, _ = b.WriteString("\r\n")
	_, _ = b.Write(body) // none of these fails
	return b.Bytes()
}

func decode(stored []byte) (status int, header http.Header, body []byte, err error) {
	const end = "\r\n\r\n"
	i := bytes.Index(stored, []byte(end))
	if i < 0 { // not made by Outcome
		return 0, nil, nil, errNoAnswer
	}
	head := stored[:i+len(end)]
	answer, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), nil)
	if err != nil {
		return 0, nil, nil, fmt.Errorf("read a stored answer: %w", err)
	}
	_ = answer.Body.Close()
	return answer.StatusCode, answer.Header, stored[len(head):], nil
}

// problem is the body of a refusal, by RFC 9457.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

// WriteProblem answers with a problem of no type. What the store's error says is for the program, not
// for the client.
func WriteProblem(w http.ResponseWriter, _ *http.Request, f Refusal) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(f.Status)
	p := problem{Type: "about:blank", Title: http.StatusText(f.Status), Status: f.Status, Detail: f.Detail}
	_ = json.NewEncoder(w).Encode(p) // fails when the client is gone
}
