package store

// ReasonError gives an error a reason that people can read.
type ReasonError struct {
	Err    error  // what it is: coord.ErrConflict, coord.ErrNotFound, or forbidden
	Field  string // of the request, when one is to blame
	Reason string
}

func (e *ReasonError) Error() string { return e.Reason }

// Unwrap returns what it is.
func (e *ReasonError) Unwrap() error { return e.Err }
