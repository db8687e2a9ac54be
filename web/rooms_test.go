package web_test

import (
	"fmt"
	"testing"

	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
)

// guest is user for a guest.
func (rp *replica) guest(t *testing.T, name string) *client {
	t.Helper()
	return rp.signedIn(t, name, store.Guest)
}

// id is the id of the user of a client.
func (c *client) id() int64 {
	c.t.Helper()
	return int64(c.call("GET", "/api/v1/me", nil, 200)["user"].(body)["id"].(float64))
}

// private makes a private room and returns its path and topic.
func (c *client) private(name string) (path, topic string) {
	c.t.Helper()
	room := c.call("POST", "/api/v1/rooms", body{"kind": "private", "name": name, "description": "about"}, 201)["room"].(body)
	if room["kind"] != "private" || room["name"] != name || room["description"] != "about" || room["member"] != "owner" {
		c.t.Errorf("got %v", room)
	}
	id := int64(room["id"].(float64))
	return fmt.Sprintf("/api/v1/rooms/%d", id), rooms.Topic(id)
}

func TestMembers(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	ada, bob := rp.user(t, "Ada"), rp.user(t, "Bob")
	path, _ := ada.private("Plans")
	bobsPath := fmt.Sprintf("%s/members/%d", path, bob.id())
	bob.call("GET", path, nil, 404)
	bob.call("GET", path+"/messages", nil, 404)
	bob.call("GET", path+"/members", nil, 404)
	bob.call("PUT", bobsPath, body{}, 404)
	member := ada.call("PUT", bobsPath, body{}, 200)["member"].(body)
	if member["name"] != "Bob" || member["role"] != "member" || member["user_id"] != float64(bob.id()) || member["joined_at"] == nil {
		t.Errorf("got %v", member)
	}
	if got := bob.call("GET", path, nil, 200)["room"].(body); got["member"] != "member" || got["unread"] != 0.0 || got["last_read"] != 0.0 {
		t.Errorf("got %v", got)
	}
	if got := ada.call("PUT", bobsPath, body{"role": "boss"}, 422); got["field"] != "role" {
		t.Errorf("got %v", got)
	}
	if got := bob.call("PATCH", path, body{"description": "mine"}, 403); got["detail"] == "" {
		t.Errorf("got %v", got)
	}
	if got := ada.call("PATCH", path, body{}, 422); got["field"] != "description" {
		t.Errorf("got %v", got)
	}
	if got := ada.call("PATCH", path, body{"description": "ours"}, 200)["room"].(body); got["description"] != "ours" {
		t.Errorf("got %v", got)
	}
	adasPath := fmt.Sprintf("%s/members/%d", path, ada.id())
	ada.call("DELETE", adasPath, nil, 409)
	ada.call("PUT", bobsPath, body{"role": "owner"}, 200)
	ada.call("DELETE", adasPath, nil, 204)
	ada.call("GET", path, nil, 404)
	if list := bob.call("GET", path+"/members", nil, 200)["members"].([]any); len(list) != 1 || list[0].(body)["role"] != "owner" {
		t.Errorf("got %v", list)
	}
	for _, strange := range []string{"/members/x", "/members/99999"} {
		bob.call("PUT", path+strange, body{}, 404)
		bob.call("DELETE", path+strange, nil, 404)
	}
	bob.call("GET", "/api/v1/rooms/x", nil, 404)
}

func TestDirectRoomAndPeople(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	ada, bob, gil := rp.user(t, "Ada"), rp.user(t, "Bob"), rp.guest(t, "Gil")
	users := ada.call("GET", "/api/v1/users", nil, 200)["users"].([]any)
	if len(users) != 3 || fmt.Sprint(users[2]) != fmt.Sprint(body{"id": float64(gil.id()), "name": "Gil", "role": "guest"}) {
		t.Errorf("got %v", users)
	}
	gil.call("GET", "/api/v1/users", nil, 403)
	room := ada.call("POST", "/api/v1/rooms", body{"kind": "direct", "user_id": bob.id()}, 201)["room"].(body)
	if room["name"] != "Bob" || room["user_id"] != float64(bob.id()) || room["member"] != "member" {
		t.Errorf("got %v", room)
	}
	if got := bob.call("POST", "/api/v1/rooms", body{"kind": "direct", "user_id": ada.id()}, 200)["room"].(body); got["id"] != room["id"] || got["name"] != "Ada" {
		t.Errorf("got %v", got)
	}
	if got := ada.call("POST", "/api/v1/rooms", body{"kind": "direct", "user_id": ada.id()}, 422); got["field"] != "user_id" {
		t.Errorf("got %v", got)
	}

	// A guest has what somebody adds them to, and nothing else.
	ada.room("General")
	path, _ := ada.private("Plans")
	if list := gil.call("GET", "/api/v1/rooms", nil, 200)["rooms"].([]any); len(list) != 0 {
		t.Errorf("got %v", list)
	}
	gil.call("POST", "/api/v1/rooms", body{"name": "Mine"}, 403)
	ada.call("PUT", fmt.Sprintf("%s/members/%d", path, gil.id()), body{}, 200)
	if list := gil.call("GET", "/api/v1/rooms", nil, 200)["rooms"].([]any); len(list) != 1 || list[0].(body)["name"] != "Plans" {
		t.Errorf("got %v", list)
	}
	gil.call("POST", path+"/messages", body{"client_id": "c", "text": "hello"}, 201)
	if list := gil.call("GET", "/api/v1/tasks", nil, 200)["tasks"].([]any); len(list) != 0 {
		t.Errorf("got %v", list)
	}
	gil.call("POST", "/api/v1/tasks", body{"name": "t", "room_id": 2, "text": "x"}, 403)
}

func TestMessagesChange(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	ada, bob := rp.user(t, "Ada"), rp.user(t, "Bob")
	id, topic := ada.room("General")
	s := bob.connect()
	s.subscribe(topic, "head")
	path := fmt.Sprintf("/api/v1/rooms/%d", id)
	posted := ada.call("POST", path+"/messages", body{"client_id": "c", "text": "helo"}, 201)["message"].(body)
	if posted["edited_at"] != nil || posted["deleted"] != nil {
		t.Errorf("got %v", posted)
	}
	message := fmt.Sprintf("%s/messages/%.0f", path, posted["id"])
	if text, _ := s.text(); text != "helo" {
		t.Errorf("heard %q", text)
	}
	bob.call("PATCH", message, body{"text": "hell"}, 403)
	if got := ada.call("PATCH", message, body{"text": " "}, 422); got["field"] != "text" {
		t.Errorf("got %v", got)
	}
	edited := ada.call("PATCH", message, body{"text": "hello"}, 200)["message"].(body)
	if edited["text"] != "hello" || edited["edited_at"] == nil {
		t.Errorf("got %v", edited)
	}
	heard := s.expect("event")
	if heard["kind"] != rooms.KindMessageEdited || fmt.Sprint(heard["payload"]) != fmt.Sprint(edited) {
		t.Errorf("heard %v, want %v", heard, edited)
	}

	bob.call("PUT", fmt.Sprintf("%s/members/%d", path, bob.id()), body{}, 200)
	s.expect("event")
	ada.call("POST", path+"/messages", body{"client_id": "d", "text": "again"}, 201)
	s.expect("event")
	mine := func() body {
		t.Helper()
		return bob.call("GET", path, nil, 200)["room"].(body)
	}
	if got := mine(); got["unread"] != 1.0 {
		t.Errorf("got %v", got)
	}
	bob.call("POST", path+"/read", body{"message_id": 1 << 40}, 204)
	if got := mine(); got["unread"] != 0.0 || got["last_read"] != posted["id"].(float64)+1 {
		t.Errorf("got %v", got)
	}
	if got := bob.call("POST", path+"/read", body{}, 422); got["field"] != "message_id" {
		t.Errorf("got %v", got)
	}

	bob.call("DELETE", message, nil, 403)
	ada.call("DELETE", message, nil, 204)
	ada.call("DELETE", message, nil, 204)
	heard = s.expect("event")
	if gone := heard["payload"].(body); heard["kind"] != rooms.KindMessageDeleted || gone["deleted"] != true || gone["text"] != "" {
		t.Errorf("heard %v", heard)
	}
	ada.call("PATCH", message, body{"text": "back"}, 409)
	ada.call("DELETE", path+"/messages/999", nil, 404)
	list := bob.call("GET", path+"/messages", nil, 200)["messages"].([]any)
	if first := list[0].(body); len(list) != 2 || first["text"] != "" || first["deleted"] != true {
		t.Errorf("got %v", list)
	}
}
