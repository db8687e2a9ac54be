package coord

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
)

func TestPositionText(t *testing.T) {
	for _, test := range []struct {
		position Position
		text     string
	}{
		{Start, "0"},
		{Head, "head"},
		{Position{Seq: 1}, "1.00000000"},
		{Position{Seq: 42, Tag: 0x9f3a1c07}, "42.9f3a1c07"},
		{Position{Seq: math.MaxInt64, Tag: math.MaxUint32}, "9223372036854775807.ffffffff"},
	} {
		if got := test.position.String(); got != test.text {
			t.Errorf("%#v is written %q, want %q", test.position, got, test.text)
		}
		if got, err := ParsePosition(test.text); err != nil || got != test.position {
			t.Errorf("%q is read as %#v (%v), want %#v", test.text, got, err, test.position)
		}
		data, err := json.Marshal(map[string]Position{"p": test.position})
		var back map[string]Position
		if err != nil || json.Unmarshal(data, &back) != nil || back["p"] != test.position {
			t.Errorf("%v becomes %s and then %v (%v)", test.position, data, back["p"], err)
		}
	}
	if got, err := ParsePosition(""); err != nil || got != Head {
		t.Errorf("the empty text is read as %v (%v), want Head", got, err)
	}
}

func TestBadPositions(t *testing.T) {
	for _, text := range []string{
		"00", "1", "1.", ".00000001", "0.00000000", "0.00000001", "-1.00000001", "+1.00000001", "1.0000000", "1.000000001",
		"1.0000000g", "1.+0000001", "1.0x000001", "1_0.00000001", " 1.00000001", "1.00000001 ", "1.00000001.2", "Head", "HEAD",
		"9223372036854775808.00000001", "1e3.00000001", "1.0000_001", "\x00", "١.00000001",
	} {
		p, err := ParsePosition(text)
		invalid, ok := errors.AsType[*InvalidError](err)
		if !ok || !errors.Is(err, ErrInvalid) || invalid.Field != "Position" || p != (Position{}) {
			t.Errorf("%q is read as %v (%v), want an InvalidError", text, p, err)
		}
		var into Position
		if err := into.UnmarshalText([]byte(text)); !errors.Is(err, ErrInvalid) {
			t.Errorf("UnmarshalText of %q: %v", text, err)
		}
	}
}

func FuzzParsePosition(f *testing.F) {
	for _, text := range []string{"", "0", "head", "42.9f3a1c07", "042.9F3A1C07", "-1.00000000", "1."} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePosition(text)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("%q: %v is no ErrInvalid", text, err)
			}
			return
		}
		if p.Seq < 1 && p != Start && p != Head {
			t.Fatalf("%q is read as %#v, which is no position", text, p)
		}
		if err := checkPositions(map[string]Position{"t": p}); err != nil {
			t.Fatalf("%q is read as %v, which a Subscribe refuses: %v", text, p, err)
		}
		if back, err := ParsePosition(p.String()); err != nil || back != p {
			t.Fatalf("%q is read as %v, written %q, read as %v (%v)", text, p, p, back, err)
		}
		if text != "" && len(text) == len(p.String()) && !strings.EqualFold(text, p.String()) {
			t.Fatalf("%q is read as %v", text, p)
		}
	})
}

func TestTagsDiffer(t *testing.T) {
	seen := make(map[Tag]bool)
	for range 1000 {
		seen[NewTag()] = true
	}
	if len(seen) < 990 {
		t.Errorf("of 1000 tags %d are different", len(seen))
	}
}
