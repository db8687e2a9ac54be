package doctor

import (
	"context"
	"time"
)

// Driver is how many replicas the driver of this build is made for. Several says that it is
// any number of them; otherwise what tells why not, and advice what to do.
func Driver(several bool, what, advice string) Check {
	return Check{Name: "driver", Vital: true, Look: func(context.Context) (Finding, error) {
		if !several {
			return unsafe(advice, "%s", what), nil
		}
		return fine("%s", what), nil
	}}
}

// Config are the settings that may contradict each other.
type Config struct {
	Lease, Poll                 time.Duration
	DrainGrace, ShutdownTimeout time.Duration
	Public                      bool // browsers are on other machines, and come by https
	Proxies                     int  // that are trusted
}

// Settings looks for settings that are valid and contradict each other. What is not valid,
// such as a drain grace that is longer than the whole stop, no command accepts.
func Settings(c Config) Check {
	return Check{Name: "settings", Look: func(context.Context) (Finding, error) { return judgeSettings(c), nil }}
}

// stopLeast is how long a stop should have when the drain grace is over.
const stopLeast = 5 * time.Second

func judgeSettings(c Config) Finding {
	var list []Finding
	if c.Lease < 3*c.Poll {
		list = append(list, warning("set TANDEM_LEASE to three times TANDEM_POLL or more",
			"a lease (%v) ends before its replica has polled (%v) three times", c.Lease, c.Poll))
	}
	if left := c.ShutdownTimeout - c.DrainGrace; left < stopLeast {
		list = append(list, warning("raise TANDEM_SHUTDOWN_TIMEOUT or lower TANDEM_DRAIN_GRACE",
			"when the drain grace (%v) is over, requests and runs have %v of TANDEM_SHUTDOWN_TIMEOUT to end", c.DrainGrace, left))
	}
	if c.Public && c.Proxies == 0 {
		list = append(list, warning("set TANDEM_TRUSTED_PROXIES to the addresses of what ends TLS for TANDEM_PUBLIC_URL",
			"browsers come by https, so through a proxy, and none is trusted: all of them share one address, and its limits"))
	}
	return together(fine("they agree with each other"), list...)
}
