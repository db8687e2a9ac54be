package web

import (
	"net/http"

	"github.com/tandemhq/tandem/app/rooms"
	"github.com/tandemhq/tandem/app/store"
	"github.com/tandemhq/tandem/coord"
)

func (h *handler) getUsers(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	list, err := h.rooms.Users(r.Context(), userOf(r))
	return http.StatusOK, map[string]any{"users": orEmpty(list)}, err
}

func (h *handler) getRooms(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	list, err := h.rooms.List(r.Context(), userOf(r))
	return http.StatusOK, map[string]any{"rooms": orEmpty(list)}, err
}

type roomAnswer struct {
	Room store.MyRoom `json:"room"`
}

func (h *handler) postRooms(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	var body struct {
		Kind        store.RoomKind `json:"kind"`
		Name        string         `json:"name"`
		Description string         `json:"description"`
		UserID      int64          `json:"user_id"`
	}
	if err := readJSON(r, &body); err != nil {
		return 0, nil, err
	}
	room, made, err := h.rooms.Create(r.Context(), userOf(r), rooms.NewRoom(body))
	return created(made), roomAnswer{room}, err
}

// created is the status of what was made, or was there already.
func created(made bool) int {
	if made {
		return http.StatusCreated
	}
	return http.StatusOK
}

// inRoom is an endpoint for the room that the path names.
func inRoom(e func(r *http.Request, room int64) (int, any, error)) endpoint {
	return func(_ http.ResponseWriter, r *http.Request) (int, any, error) {
		room, err := pathID(r, "id")
		if err != nil {
			return 0, nil, err
		}
		return e(r, room)
	}
}

func (h *handler) getRoom(r *http.Request, id int64) (int, any, error) {
	room, err := h.rooms.Get(r.Context(), userOf(r), id)
	return http.StatusOK, roomAnswer{room}, err
}

func (h *handler) patchRoom(r *http.Request, id int64) (int, any, error) {
	var body struct{ Description *string }
	if err := readJSON(r, &body); err != nil {
		return 0, nil, err
	}
	if body.Description == nil {
		return 0, nil, &coord.InvalidError{Field: "description", Reason: "must be given"}
	}
	room, err := h.rooms.Describe(r.Context(), userOf(r), id, *body.Description)
	return http.StatusOK, roomAnswer{room}, err
}

func (h *handler) getMembers(r *http.Request, room int64) (int, any, error) {
	list, err := h.rooms.Members(r.Context(), userOf(r), room)
	return http.StatusOK, map[string]any{"members": orEmpty(list)}, err
}

func (h *handler) putMember(r *http.Request, room int64) (int, any, error) {
	user, err := pathID(r, "user")
	if err != nil {
		return 0, nil, err
	}
	var body struct{ Role store.RoomRole }
	if err := readJSON(r, &body); err != nil {
		return 0, nil, err
	}
	member, err := h.rooms.SetMember(r.Context(), userOf(r), room, user, body.Role)
	return http.StatusOK, map[string]any{"member": member}, err
}

func (h *handler) deleteMember(r *http.Request, room int64) (int, any, error) {
	user, err := pathID(r, "user")
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, h.rooms.RemoveMember(r.Context(), userOf(r), room, user)
}

func (h *handler) postRead(r *http.Request, room int64) (int, any, error) {
	var body struct {
		MessageID int64 `json:"message_id"`
	}
	if err := readJSON(r, &body); err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, h.rooms.MarkRead(r.Context(), userOf(r), room, body.MessageID)
}

func (h *handler) getMessages(r *http.Request, room int64) (int, any, error) {
	before, err := h.before(r)
	if err != nil {
		return 0, nil, err
	}
	limit, err := number(r, "limit")
	if err != nil {
		return 0, nil, err
	}
	page, err := h.rooms.Messages(r.Context(), userOf(r), room, before, int(min(limit, maxBody)))
	next := ""
	if len(page.Messages) > 0 { // the oldest first
		next = h.next(r, page.More, page.Messages[0].ID)
	}
	return http.StatusOK, struct {
		Messages []store.Message `json:"messages"`
		Position coord.Position  `json:"position"`
		More     bool            `json:"more"`
		Next     string          `json:"next,omitzero"`
	}{orEmpty(page.Messages), page.Position, page.More, next}, err
}

type messageAnswer struct {
	Message store.Message `json:"message"`
}

func (h *handler) postMessages(r *http.Request, room int64) (int, any, error) {
	var body struct {
		ClientID string `json:"client_id"`
		Text     string `json:"text"`
	}
	if err := readJSON(r, &body); err != nil {
		return 0, nil, err
	}
	m, made, err := h.rooms.Post(r.Context(), userOf(r), room, body.ClientID, body.Text)
	return created(made), messageAnswer{m}, err
}

func (h *handler) patchMessage(r *http.Request, room int64) (int, any, error) {
	message, err := pathID(r, "message")
	if err != nil {
		return 0, nil, err
	}
	var body struct{ Text string }
	if err := readJSON(r, &body); err != nil {
		return 0, nil, err
	}
	m, err := h.rooms.Edit(r.Context(), userOf(r), room, message, body.Text)
	return http.StatusOK, messageAnswer{m}, err
}

func (h *handler) deleteMessage(r *http.Request, room int64) (int, any, error) {
	message, err := pathID(r, "message")
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, h.rooms.Delete(r.Context(), userOf(r), room, message)
}
