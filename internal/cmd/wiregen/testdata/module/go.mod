module example.com/arrangement

go 1.26.0

require github.com/google/wire v0.7.0
