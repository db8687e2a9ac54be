package web_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// Pages that follow each other by their cursors, on replicas that take turns, are the list; a cursor
// of another list, or one that somebody has made up, is refused.
func TestCursors(t *testing.T) {
	db := newDatabase(t)
	one, two := start(t, db, nil), start(t, db, nil)
	ada := one.admin(t, "Ada")
	room := ada.call("POST", "/api/v1/rooms", body{"name": "general"}, 201)["room"].(body)["id"]
	ada.call("POST", "/api/v1/tasks", body{"name": "t", "room_id": room, "text": "x", "overlap": "allow"}, 201)
	for i := range 7 {
		ada.call("POST", "/api/v1/tasks/t/"+[]string{"pause", "resume"}[i%2], body{}, 200)
		ada.call("POST", fmt.Sprintf("/api/v1/rooms/%v/messages", room), body{"client_id": fmt.Sprint(i), "text": fmt.Sprint(i)}, 201)
		ada.call("POST", "/api/v1/tasks/t/run", body{}, 202)
	}
	messages := fmt.Sprintf("/api/v1/rooms/%v/messages", room)
	cursors := map[string]string{}
	for path, of := range map[string]string{messages: "messages", "/api/v1/tasks/t/runs": "runs", "/api/v1/runs": "runs", "/api/v1/audit": "lines"} {
		seen := map[any]bool{}
		query := "?limit=3"
		for page := 0; ; page++ {
			ada.base = []string{one.base, two.base}[page%2]
			got := ada.call("GET", path+query, nil, 200)
			for _, item := range got[of].([]any) {
				if id := item.(body)["id"]; seen[id] {
					t.Errorf("%s: %v came twice", path, id)
				} else {
					seen[id] = true
				}
			}
			next, _ := got["next"].(string)
			if got["more"] != (next != "") {
				t.Fatalf("%s: more is %v, and next %q", path, got["more"], next)
			}
			if next == "" {
				break
			}
			cursors[path] = next
			query = "?limit=3&cursor=" + url.QueryEscape(next)
		}
		if all := ada.call("GET", path+"?limit=200", nil, 200)[of].([]any); len(seen) != len(all) || len(all) < 4 {
			t.Errorf("%s: %d of %d were in its pages", path, len(seen), len(all))
		}
	}
	good := cursors["/api/v1/runs"]
	for _, bad := range []string{cursors[messages], "x", good[:len(good)-2], "B" + good[1:], good + "AA", strings.Repeat("A", 1000), good + "&before=9"} {
		if got := ada.call("GET", "/api/v1/runs?cursor="+bad, nil, 422); got["field"] != "cursor" {
			t.Errorf("%s: got %v", bad, got)
		}
	}
	ada.call("GET", "/api/v1/runs?cursor="+good, nil, 200)
}
