package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/pflag"
)

// output is the -o flag.
type output string

const (
	asTable output = "table"
	asJSON  output = "json"
)

func (o *output) bind(fs *pflag.FlagSet) {
	*o = asTable
	fs.VarP(o, "output", "o", "table or json")
}

// Set, String and Type make it a flag.
func (o *output) Set(s string) error {
	switch output(s) {
	case asTable, asJSON:
		*o = output(s)
		return nil
	}
	return fmt.Errorf("want table or json")
}

func (o *output) String() string { return string(*o) }
func (o *output) Type() string   { return "format" }

// writeJSON writes v indented, with a newline. Beyond what JSON demands, DEL and
// the C1 controls are escaped: a terminal obeys them too.
func writeJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range b.String() {
		if r >= 0x7f && r <= 0x9f {
			fmt.Fprintf(&out, `\u%04x`, r)
			continue
		}
		out.WriteRune(r)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// table writes rows under a header.
func table(w io.Writer, header []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		cells := make([]string, len(row))
		for i, c := range row {
			if cells[i] = printable(c); c == "" {
				cells[i] = "-"
			}
		}
		if _, err := fmt.Fprintln(t, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}

// details writes name and value pairs, one a line.
func details(w io.Writer, pairs [][2]string) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, p := range pairs {
		if p[1] == "" {
			p[1] = "-"
		}
		if _, err := fmt.Fprintf(t, "%s\t%s\n", p[0], printable(p[1])); err != nil {
			return err
		}
	}
	return t.Flush()
}

// printable escapes whatever could move a terminal's cursor, change its state or
// reorder its text.
func printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
	}
	return b.String()
}

// age writes a duration as a person reads it: 0.4s, 12s, 5m, 3h.
func age(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0fm", d.Minutes())
	}
	return fmt.Sprintf("%.0fh", d.Hours())
}
