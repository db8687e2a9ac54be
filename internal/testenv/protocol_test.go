package testenv

import "testing"

func TestProtocol(t *testing.T) {
	p, err := NewProtocol("../../docs/protocol.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, good := range []struct{ sender, message string }{
		{"client", `{"type":"ping"}`},
		{"client", `[{"type":"ping","id":"1"},{"type":"subscribe","id":"2","topics":{"room:1":"head","rooms":"7.00c0ffee"}}]`},
		{"client", `{"type":"tool.result","id":"1","call":"c","result":null}`},
		{"server", `{"type":"pong","id":""}`},
		{"server", `{"type":"event","topic":"t","position":"1.00000000","kind":"new","payload":null,"at":"2026-01-02T15:04:05Z"}`},
		{"server", `{"type":"event","topic":"t","position":"1.00000000","kind":"typing","payload":{"user_id":1,"name":"Ada"},"at":"2026-01-02T15:04:05.5Z"}`},
	} {
		if err := p.Check(good.sender, []byte(good.message)); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []struct{ sender, message string }{
		{"client", `{"type":"pong","id":"1"}`},
		{"client", `{"type":"ping","sender":1}`},
		{"client", `{"type":"subscribe","id":"2","topics":{"room:1":"7"}}`},
		{"client", `{"type":"tool.result","id":"1","call":"c"}`},
		{"client", `{"type":"tool.result","id":"1","call":"c","result":1,"error":"x"}`},
		{"client", `[]`},
		{"client", `7`},
		{"client", `{`},
		{"server", `{"type":"event","topic":"t","position":"head","kind":"k","payload":null,"at":"2026-01-02T15:04:05Z"}`},
		{"server", `{"type":"event","topic":"t","position":"1.00000000","kind":"k","payload":null,"at":"yesterday"}`},
		{"server", `{"type":"event","topic":"t","position":"1.00000000","kind":"typing","payload":{"user_id":1},"at":"2026-01-02T15:04:05Z"}`},
		{"server", `{"type":"error","id":"1","code":"unheard","message":"of"}`},
	} {
		if p.Check(bad.sender, []byte(bad.message)) == nil {
			t.Errorf("%s was accepted", bad.message)
		}
	}
	for _, kind := range p.Unseen() {
		if kind == "ping" || kind == "event" {
			t.Errorf("%s was seen", kind)
		}
	}
	if _, err := NewProtocol("nowhere.json"); err == nil {
		t.Error("a schema without a file")
	}
}
