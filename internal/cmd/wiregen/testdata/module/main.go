// Package main stands for a program whose build tags choose its driver.
package main

import "fmt"

type config struct{ place string }

type server struct{ driver driver }

type driver interface{ name() string }

func newServer(d driver) *server { return &server{d} }

func main() {
	s, stop, err := initialize(config{place: "here"})
	if err != nil {
		panic(err)
	}
	defer stop()
	fmt.Println(s.driver.name())
}
