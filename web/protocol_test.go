package web_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/tandemhq/tandem/internal/testenv"
)

var protocol = sync.OnceValue(func() *testenv.Protocol {
	p, err := testenv.NewProtocol("../docs/protocol.schema.json")
	if err != nil {
		panic(err)
	}
	return p
})

// documented checks that what a client got is as the schema has it. Large messages, which would
// take long, are those of tests that look at nothing but time and order.
func documented(message []byte) error {
	if len(message) > 128<<10 {
		return nil
	}
	return protocol().Check("server", message)
}

// TestProtocolExamples wants an example of every frame in the document, and each as the schema has it.
func TestProtocolExamples(t *testing.T) {
	document, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, frames, _ := strings.Cut(string(document), "\n## WebSocket\n")
	frames, streams, _ := strings.Cut(frames, "\n## ")
	fromClient, fromServer, found := strings.Cut(frames, "\n### From the server\n")
	if !found {
		t.Fatal("the document has other sections")
	}
	schema, err := testenv.NewProtocol("../docs/protocol.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```json\n(.*?)\n```")
	for sender, text := range map[string]string{"client": fromClient, "server": fromServer} {
		for _, e := range example.FindAllStringSubmatch(text, -1) {
			for line := range strings.Lines(e[1]) { // each a frame
				if !json.Valid([]byte(line)) {
					t.Errorf("no JSON: %s", line)
				} else if err := schema.Check(sender, []byte(line)); err != nil {
					t.Error(err)
				}
			}
		}
	}
	for _, data := range regexp.MustCompile("(?m)^data: (.*)$").FindAllStringSubmatch(streams, -1) {
		if err := schema.Check("server", []byte(data[1])); err != nil {
			t.Error(err)
		}
	}
	if unseen := schema.Unseen(); len(unseen) > 0 {
		t.Errorf("the document has no example of %v", unseen)
	}
}
