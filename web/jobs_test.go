package web_test

import "testing"

func TestJobs(t *testing.T) {
	rp := start(t, newDatabase(t), nil)
	rp.user(t, "Bob").call("GET", "/api/v1/jobs", nil, 403)
	ada := rp.admin(t, "Ada")
	classes := map[any]int{}
	for _, j := range ada.call("GET", "/api/v1/jobs", nil, 200)["jobs"].([]any) {
		j := j.(body)
		classes[j["class"]]++
		if j["name"] == "" || j["about"] == "" || j["why"] == "" || (j["loop"] == nil) != (j["every_s"] != nil) {
			t.Errorf("got %v", j)
		}
	}
	if classes["leader-only"] == 0 || classes["replica-safe"] == 0 || len(classes) != 2 {
		t.Errorf("the classes are %v", classes)
	}
}
