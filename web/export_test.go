package web

import (
	"github.com/tandemhq/tandem/app/auth"
	"github.com/tandemhq/tandem/app/metrics"
)

// Route is what tests see of a route.
type Route struct {
	Method, Path string
	Right        auth.Right
}

// Routes are all that is served.
func Routes() (list []Route) {
	for _, rt := range (&handler{metrics: metrics.New("test", "memory")}).routes(&static{}) {
		list = append(list, Route{rt.method, rt.path, rt.right})
	}
	return list
}
