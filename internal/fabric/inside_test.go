package fabric

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
)

func stack() *Stack {
	s := &Stack{done: make(chan struct{})}
	s.stop = sync.OnceValue(s.end)
	return s
}

func TestPartThatEndsByItself(t *testing.T) {
	s, ready, fail := stack(), make(chan struct{}), make(chan struct{})
	close(ready)
	broken := errors.New("broken")
	err := s.run(t.Context(), "part", func(context.Context) error { <-fail; return broken }, ready)
	if err != nil {
		t.Fatal(err)
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	close(fail)
	<-s.Done()
	if s.Err() != broken || !errors.Is(s.Stop(), broken) {
		t.Errorf("%v, %v; want %v", s.Err(), s.Stop(), broken)
	}
}

func TestPartsEndInTheOppositeOrder(t *testing.T) {
	s, ready := stack(), make(chan struct{})
	close(ready)
	var ended []string
	for _, name := range []string{"first", "second", "third"} {
		err := s.run(t.Context(), name, func(ctx context.Context) error {
			<-ctx.Done()
			ended = append(ended, name)
			return nil
		}, ready)
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Stop(); err != nil || s.Stop() != nil {
		t.Fatal(err)
	}
	if want := []string{"third", "second", "first"}; !slices.Equal(ended, want) {
		t.Errorf("ended %v, want %v", ended, want)
	}
	if s.Err() != nil {
		t.Errorf("a stack that was stopped says %v", s.Err())
	}
}

func TestPartThatNeverGetsReady(t *testing.T) {
	s := stack()
	err := s.run(t.Context(), "part", func(context.Context) error { return nil }, make(chan struct{}))
	if err == nil {
		t.Fatal("a part that ended was taken for ready")
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}
