package client

import "testing"

// TestEndedConnectionAsksForNothing has Next, or a timer, come to resume topics when the connection has ended: what
// that one had asked for in vain the next one would not ask for.
func TestEndedConnectionAsksForNothing(t *testing.T) {
	followed := &topic{stage: idle}
	c := &Client{topics: map[string]*topic{"room:1": followed}}
	ended := &link{client: c, answers: map[string]func(frame){}}
	for _, now := range []*link{nil, {client: c}} {
		c.link = now
		ended.resume()
		if len(ended.answers) > 0 || followed.stage != idle {
			t.Errorf("it asks for %d topics, whose stage is %v", len(ended.answers), followed.stage)
		}
	}
}
