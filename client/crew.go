package client

import (
	"context"
	"sync"
)

// crew owns the goroutines of a Client. Each has a context of its own, which
// ends when the job or the crew is stopped; stop returns after the last ended.
type crew struct {
	wg sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	jobs    map[*job]struct{}
}

// job is one goroutine of a crew.
type job struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended
}

// start runs f. It returns nil, and f does not run, once the crew is stopped.
func (c *crew) start(f func(context.Context)) *job {
	ctx, cancel := context.WithCancel(context.Background())
	j := &job{cancel: cancel, done: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		cancel()
		return nil
	}
	if c.jobs == nil {
		c.jobs = map[*job]struct{}{}
	}
	c.jobs[j] = struct{}{}
	c.wg.Go(func() {
		defer c.forget(j)
		f(ctx)
	})
	return j
}

func (c *crew) forget(j *job) {
	j.cancel()
	c.mu.Lock()
	delete(c.jobs, j)
	c.mu.Unlock()
	close(j.done)
}

func (c *crew) stop() {
	c.mu.Lock()
	c.stopped = true
	for j := range c.jobs {
		j.cancel()
	}
	c.mu.Unlock()
	c.wg.Wait()
}
