package cli

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/internal/fabric"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shell is a System whose user is the test.
type shell struct {
	env     map[string]string
	stdin   io.Reader
	runtime string

	mu     sync.Mutex
	notify []subscription
}

type subscription struct {
	c    chan<- os.Signal
	sigs []os.Signal
}

// newShell has a home and a directory for state files that are empty.
func newShell(t *testing.T) *shell {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	return &shell{env: map[string]string{"HOME": t.TempDir()}, stdin: strings.NewReader(""), runtime: t.TempDir()}
}

func (s *shell) system(stdout, stderr io.Writer) System {
	return System{
		Stdin: s.stdin, Stdout: stdout, Stderr: stderr, RuntimeDir: s.runtime,
		LookupEnv: func(name string) (string, bool) { v, ok := s.env[name]; return v, ok },
		Notify: func(c chan<- os.Signal, sigs ...os.Signal) func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.notify = append(s.notify, subscription{c, sigs})
			return func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.notify = slices.DeleteFunc(s.notify, func(n subscription) bool { return n.c == c })
			}
		},
	}
}

// signal delivers a signal as the kernel would.
func (s *shell) signal(sig os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.notify {
		if slices.Contains(n.sigs, sig) {
			n.c <- sig
		}
	}
}

// result is what a command line left.
type result struct {
	code           int
	stdout, stderr string
}

func (s *shell) weft(args ...string) result {
	var out, errs buffer
	code := Main(args, s.system(&out, &errs))
	return result{code, out.String(), errs.String()}
}

// buffer is a bytes.Buffer for several writers, and wakes whoever waits for text.
type buffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	wait map[string]chan struct{}
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.b.Write(p)
	for text, c := range b.wait {
		if bytes.Contains(b.b.Bytes(), []byte(text)) {
			close(c)
			delete(b.wait, text)
		}
	}
	return n, err
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// has returns a channel that is closed once text was written.
func (b *buffer) has(text string) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := make(chan struct{})
	if b.wait == nil {
		b.wait = map[string]chan struct{}{}
	}
	b.wait[text] = c
	return c
}

// up is a stack that the shell's commands find as the user's weft up.
func (s *shell) up(t *testing.T, w fabric.Worker) {
	t.Helper()
	stack, err := fabric.Start(t.Context(), fabric.Options{Listen: "127.0.0.1:0", RuntimeDir: s.runtime, Worker: w})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stack.Stop(); err != nil {
			t.Error(err)
		}
	})
}
