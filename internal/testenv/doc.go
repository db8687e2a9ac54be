// Package testenv gives tests a real PostgreSQL, a real PgBouncer and a real browser.
//
// A package whose tests need PostgreSQL declares
//
//	func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
//
// and each test asks for a database of its own:
//
//	url := testenv.NewDatabase(t, "app", func(url string) error { return migrate(url) })
//
// The server is the one named by TANDEM_TEST_PG_URL when that is set, and otherwise a
// throw-away cluster that the test process starts on first use and that cannot outlive it.
// A test for which no server can be had fails and says what to install: it is never skipped.
package testenv
