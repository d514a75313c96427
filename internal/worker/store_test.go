package worker

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/wire"
)

func TestBudgetIsNeverPassed(t *testing.T) {
	all := newBudget(1000, nil)
	var wait sync.WaitGroup
	for range 8 {
		b := newBudget(400, all)
		wait.Go(func() {
			for range 1000 {
				n := b.take(300)
				if left := all.free.Load(); n < 0 || n > 300 || left > 1000 {
					t.Errorf("took %d, %d left in all", n, left)
				}
				b.give(n)
			}
			if left := b.left(); left > 400 {
				t.Errorf("%d left of 400", left)
			}
		})
	}
	wait.Wait()
	if left := all.left(); left != 1000 {
		t.Errorf("%d left of 1000 when all was given back", left)
	}
}

func TestSpillIsAQueue(t *testing.T) {
	b := newBudget(10_000, nil)
	s := spill{dir: t.TempDir(), budget: b}
	rnd := rand.New(rand.NewPCG(1, 2))
	var put, got []byte
	for len(put) < 200_000 {
		p := make([]byte, rnd.IntN(3000))
		for i := range p {
			p[i] = byte(rnd.Uint32())
		}
		n := s.append(p)
		put = append(put, p[:n]...)
		if s.written > 10_000 || int64(n) < min(int64(len(p)), 10_000-s.written) {
			t.Fatalf("took %d of %d with %d on disk", n, len(p), s.written)
		}
		for s.len() > 0 && rnd.IntN(3) > 0 {
			q := make([]byte, min(s.len(), int64(rnd.IntN(2000)+1)))
			if err := s.next(q); err != nil {
				t.Fatal(err)
			}
			got = append(got, q...)
		}
	}
	rest := make([]byte, s.len())
	if len(rest) > 0 {
		if err := s.next(rest); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(append(got, rest...), put) {
		t.Error("other bytes came out than went in")
	}
	s.close()
	if b.left() != 10_000 {
		t.Errorf("%d left of 10,000 after close", b.left())
	}
}

func TestSpillWithoutADirectoryIsFull(t *testing.T) {
	s := spill{dir: t.TempDir() + "/none", budget: newBudget(100, nil)}
	if n := s.append([]byte("x")); n != 0 || s.room() != 0 || s.len() != 0 {
		t.Errorf("took %d, room for %d", n, s.room())
	}
	s.close()
}

func TestAudience(t *testing.T) {
	told := 0
	a := &audience{spills: true}
	watch := func() { a.watch(wire.Stdout, func() { told++ }) }
	want := func(what string, n int) {
		t.Helper()
		if told != n {
			t.Errorf("%s: told %d times, want %d", what, told, n)
		}
	}
	watch()
	a.seen(true)
	want("the client is there", 0)
	a.seen(false)
	a.seen(false)
	want("it is away", 1)
	watch()
	want("asked while it is away", 2)
	a.back()
	watch()
	want("another has come", 2)
	a.leave(time.Now())
	want("it says that it goes", 3)
	a.seen(true)
	if away, said := a.isAway(); !away || said.IsZero() {
		t.Error("late messages of a client that has gone bring it back")
	}
	a.back()
	watch()
	a.exit()
	want("the command is gone", 4)
	b := &audience{}
	b.watch(wire.Stdout, func() { t.Error("told to store without a spill") })
	b.seen(false)
}
