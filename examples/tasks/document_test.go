package tasks_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const document = "../../docs/tasks.md"

// piece is some lines and where they are.
type piece struct{ where, text string }

// TestDocumentQuotesTheExamples wants each Go block of the document to be a marked part of the
// examples, and each marked part to be in the document; and what is shown as output to be output.
func TestDocumentQuotesTheExamples(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var parts, outputs []piece
	for _, name := range files {
		parts = append(parts, marked(t, name)...)
		outputs = append(outputs, printed(t, name)...)
	}
	quoted := blocks(t, "go")
	if len(quoted) == 0 || len(parts) == 0 {
		t.Fatalf("%d Go blocks and %d marked parts: does this test still look for the right ones?", len(quoted), len(parts))
	}
	for _, block := range quoted {
		if !slices.ContainsFunc(parts, func(p piece) bool { return p.text == block.text }) {
			t.Errorf("%s: no marked part of the examples is:\n%s", block.where, block.text)
		}
	}
	for _, part := range parts {
		if !slices.ContainsFunc(quoted, func(b piece) bool { return b.text == part.text }) {
			t.Errorf("%s: the document does not have:\n%s", part.where, part.text)
		}
	}
	for _, block := range blocks(t, "text") {
		if !slices.ContainsFunc(outputs, func(o piece) bool { return o.text == block.text }) {
			t.Errorf("%s: no example prints:\n%s", block.where, block.text)
		}
	}
}

func read(tb testing.TB, name string) string {
	tb.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// blocks returns the fenced blocks of a language in the document.
func blocks(tb testing.TB, language string) (found []piece) {
	tb.Helper()
	text := read(tb, document)
	for _, at := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatchIndex(text, -1) {
		line := strings.Count(text[:at[0]], "\n") + 1
		found = append(found, piece{fmt.Sprintf("%s:%d", document, line), text[at[2]:at[3]]})
	}
	return found
}

// marked returns the marked parts of a file, without the indentation that all their lines have.
func marked(tb testing.TB, name string) (found []piece) {
	tb.Helper()
	var part []string
	begun := 0
	number := 0
	for line := range strings.Lines(read(tb, name)) {
		number++
		switch strings.TrimSpace(line) {
		case "//doc:begin":
			if begun > 0 {
				tb.Fatalf("%s:%d: a part begins in another", name, number)
			}
			part, begun = nil, number
		case "//doc:end":
			if begun == 0 {
				tb.Fatalf("%s:%d: a part ends that has not begun", name, number)
			}
			found = append(found, piece{fmt.Sprintf("%s:%d", name, begun), strings.Join(unindented(part), "")})
			begun = 0
		default:
			part = append(part, line)
		}
	}
	if begun > 0 {
		tb.Fatalf("%s:%d: a part does not end", name, begun)
	}
	return found
}

func unindented(lines []string) []string {
	common := -1
	for _, line := range lines {
		tabs := len(line) - len(strings.TrimLeft(line, "\t"))
		if strings.TrimSpace(line) != "" && (common < 0 || tabs < common) {
			common = tabs
		}
	}
	cut := slices.Clone(lines)
	for i, line := range cut {
		cut[i] = line[min(max(common, 0), len(line)-1):]
	}
	return cut
}

// printed returns what the examples of a file print.
func printed(tb testing.TB, name string) (found []piece) {
	tb.Helper()
	for _, at := range regexp.MustCompile(`(?m)^\t// Output:\n((?:\t//.*\n)+)`).FindAllStringSubmatch(read(tb, name), -1) {
		var lines strings.Builder
		for line := range strings.Lines(at[1]) {
			lines.WriteString(strings.TrimPrefix(strings.TrimPrefix(line, "\t//"), " "))
		}
		found = append(found, piece{name, lines.String()})
	}
	return found
}

// table returns the rows below a header of the document, in cells.
func table(tb testing.TB, header ...string) (rows [][]string) {
	tb.Helper()
	inside := false
	for line := range strings.Lines(read(tb, document)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != len(header)+2 {
			if inside {
				break
			}
			continue
		}
		cells = cells[1 : len(cells)-1]
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case slices.Equal(cells, header):
			inside = true
		case inside && strings.Trim(cells[0], "-") != "":
			rows = append(rows, cells)
		}
	}
	if len(rows) == 0 {
		tb.Fatalf("%s has no table with the columns %q", document, header)
	}
	return rows
}

// wantRow says what a row must be.
func wantRow(tb testing.TB, row []string, cells ...string) {
	tb.Helper()
	if !slices.Equal(row, cells) {
		tb.Errorf("a row of %s is\n| %s |\nand must be\n| %s |", document, strings.Join(row, " | "), strings.Join(cells, " | "))
	}
}

// wantRows says what all rows of a table must be.
func wantRows(tb testing.TB, rows, want [][]string) {
	tb.Helper()
	for i, cells := range want[:min(len(rows), len(want))] {
		wantRow(tb, rows[i], cells...)
	}
	for _, cells := range want[min(len(rows), len(want)):] {
		tb.Errorf("a table of %s lacks\n| %s |", document, strings.Join(cells, " | "))
	}
	for _, row := range rows[min(len(rows), len(want)):] {
		tb.Errorf("a table of %s has, and must not have\n| %s |", document, strings.Join(row, " | "))
	}
}

// code takes the marks of code off a cell.
func code(cell string) string { return strings.Trim(cell, "`") }
