package testenv

// EnvHAProxy names the haproxy program.
const EnvHAProxy = "TANDEM_TEST_HAPROXY"

const adviceHAProxy = "install HAProxy (Debian, Ubuntu: apt-get install haproxy; " +
	"Fedora: dnf install haproxy; macOS: brew install haproxy), " +
	"or set " + EnvHAProxy + " to the program"

// FindHAProxy returns the path of the haproxy program. It looks at TANDEM_TEST_HAPROXY, PATH and
// the usual folders. The error says what to install, and wraps ErrMissing unless
// TANDEM_TEST_HAPROXY is wrong.
func FindHAProxy() (path string, err error) {
	return findProgram("HAProxy", EnvHAProxy, []string{"haproxy"}, []string{
		"/usr/sbin/haproxy",
		"/usr/local/sbin/haproxy",
		"/opt/homebrew/bin/haproxy",
	}, adviceHAProxy)
}
