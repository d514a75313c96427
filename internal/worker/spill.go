package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
)

// spillDir is where spill files are made, below the state directory.
const spillDir = "spill"

// makeSpillDir makes the directory for spill files.
func makeSpillDir(state string) (string, error) {
	dir := filepath.Join(state, spillDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("spill directory: %w", err)
	}
	return dir, nil
}

// spiller makes the spill files of one channel.
func (w *Worker) spiller() func() spill {
	b := newBudget(w.cfg.Limits.Spill, w.spills)
	return func() spill { return spill{dir: w.spillDir, budget: b} }
}

// budget bounds the bytes of several spill files together, and counts against
// its parent, if there is one. Safe for concurrent use.
type budget struct {
	parent *budget
	free   atomic.Int64
}

func newBudget(n int64, parent *budget) *budget {
	b := &budget{parent: parent}
	b.free.Store(max(n, 0))
	return b
}

// take takes up to n bytes and returns how many.
func (b *budget) take(n int64) int64 {
	if b.parent != nil {
		n = b.parent.take(n)
	}
	got := min(n, max(0, b.free.Load()))
	if left := b.free.Add(-got); left < 0 { // somebody else was faster
		back := min(got, -left)
		b.free.Add(back)
		got -= back
	}
	if got < n && b.parent != nil {
		b.parent.give(n - got)
	}
	return got
}

func (b *budget) give(n int64) {
	b.free.Add(n)
	if b.parent != nil {
		b.parent.give(n)
	}
}

// left is how many bytes a take may get now.
func (b *budget) left() int64 {
	n := max(0, b.free.Load())
	if b.parent != nil {
		n = min(n, b.parent.left())
	}
	return n
}

// spill is a queue of bytes in a file that has no name, so that no crash leaves
// one behind. Its budget is charged for what stands on the disk: the room of
// bytes that were read comes back when all were. One goroutine uses it.
type spill struct {
	dir    string
	budget *budget

	file          *os.File // nil until needed
	read, written int64
	failed        bool // the disk takes no more for now
}

func (s *spill) len() int64 { return s.written - s.read }

// room is how many bytes append may take.
func (s *spill) room() int64 {
	if s.failed {
		return 0
	}
	return s.budget.left()
}

// append stores what of p there is room for and returns how many bytes. A disk
// that takes no more is a limit like another.
func (s *spill) append(p []byte) int {
	if s.file == nil && !s.open() {
		return 0
	}
	got := s.budget.take(int64(len(p)))
	n, err := s.file.WriteAt(p[:got], s.written)
	s.failed = err != nil
	s.budget.give(got - int64(n))
	s.written += int64(n)
	return n
}

func (s *spill) open() bool {
	f, err := os.CreateTemp(s.dir, "output.*") // mode 0600
	if err == nil {
		if err = os.Remove(f.Name()); err != nil {
			_ = f.Close()
		}
	}
	if err != nil {
		s.failed = true
		return false
	}
	s.file = f
	return true
}

// next takes len(p) bytes, at most len, out of the file.
func (s *spill) next(p []byte) error {
	if _, err := s.file.ReadAt(p, s.read); err != nil {
		return fmt.Errorf("read spilled output: %w", err)
	}
	s.read += int64(len(p))
	if s.read < s.written {
		return nil
	}
	if err := s.file.Truncate(0); err != nil {
		s.failed = true // its room does not come back before close
		return nil
	}
	s.budget.give(s.written)
	s.read, s.written, s.failed = 0, 0, false
	return nil
}

// close gives back what the file takes.
func (s *spill) close() {
	if s.file == nil {
		return
	}
	_ = s.file.Close() // nobody reads it again
	s.file = nil
	s.budget.give(s.written)
	s.read, s.written = 0, 0
}
