package testenv

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Protocol checks frames of the WebSocket against the protocol's JSON Schema.
type Protocol struct {
	frames map[string]map[string]*jsonschema.Schema // by who sends them, "client" or "server", and by type

	mu   sync.Mutex
	seen map[string]bool // types that were checked and good
}

// NewProtocol reads the schema from a file.
func NewProtocol(path string) (*Protocol, error) {
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	whole, err := c.Compile(path)
	if err != nil {
		return nil, err
	}
	p := &Protocol{frames: map[string]map[string]*jsonschema.Schema{}, seen: map[string]bool{}}
	for _, sender := range []string{"client", "server"} {
		list, err := c.Compile(whole.Location + "/$defs/" + sender + "_frame")
		if err != nil {
			return nil, err
		}
		p.frames[sender] = map[string]*jsonschema.Schema{}
		for _, alternative := range list.OneOf {
			frame := alternative.Ref
			p.frames[sender][frame.Location[strings.LastIndex(frame.Location, "/")+1:]] = frame
		}
	}
	return p, nil
}

// Check checks a text message of the client or the server, a frame or an array of frames, each by
// the definition of its type: that says better what is wrong than the schema as a whole.
func (p *Protocol) Check(sender string, message []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(message))
	if err != nil {
		return fmt.Errorf("%w: %s", err, message)
	}
	frames, many := value.([]any)
	if !many {
		frames = []any{value}
	}
	if len(frames) == 0 {
		return fmt.Errorf("no frame in %s", message)
	}
	for _, frame := range frames {
		object, _ := frame.(map[string]any)
		kind, _ := object["type"].(string)
		schema := p.frames[sender][kind]
		if schema == nil {
			return fmt.Errorf("no type of frames of the %s: %s", sender, message)
		}
		if err := schema.Validate(frame); err != nil {
			return fmt.Errorf("%w\n%s", err, message)
		}
		p.mu.Lock()
		p.seen[kind] = true
		p.mu.Unlock()
	}
	return nil
}

// Unseen returns the types of frames of which none was checked.
func (p *Protocol) Unseen() (types []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, frames := range p.frames {
		for kind := range frames {
			if !p.seen[kind] {
				types = append(types, kind)
			}
		}
	}
	slices.Sort(types)
	return types
}
