package coordinator

import (
	"context"
	"sync"
)

// crew runs a bounded number of requests beside each other and can be waited
// for. It is safe for concurrent use.
type crew struct {
	slots chan struct{}
	// base is the context of all jobs: they outlive the request that began them,
	// but not abort.
	base  context.Context
	abort context.CancelFunc

	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

func newCrew(size int) *crew {
	c := &crew{slots: make(chan struct{}, size)}
	c.base, c.abort = context.WithCancel(context.Background())
	return c
}

// crewAnswer says what became of a job given to a crew.
type crewAnswer int

const (
	crewTaken crewAnswer = iota
	crewFull
	crewClosed
)

// try starts job unless all are at work or the crew is closed. It never waits.
func (c *crew) try(job func(ctx context.Context)) crewAnswer {
	select {
	case c.slots <- struct{}{}:
	default:
		return crewFull
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		<-c.slots
		return crewClosed
	}
	c.wg.Go(func() {
		defer func() { <-c.slots }()
		job(c.base)
	})
	return crewTaken
}

// close takes no more jobs and returns when the last has ended.
func (c *crew) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.wg.Wait()
	c.abort()
}
