package sandbox

import (
	"context"
	"sync"
	"time"
)

// Drain measures how long the descendants of a finished command have held its
// pipes. Time in which a reader is blocked by lack of credit does not count:
// then it is the reader of the channel who is slow, not the descendants.
type Drain struct {
	bound  time.Duration
	change chan struct{} // capacity 1: blocked went from or to 0

	mu      sync.Mutex
	blocked int // readers that wait for credit; guarded by mu
}

// NewDrain returns a Drain that is used up after bound.
func NewDrain(bound time.Duration) *Drain {
	return &Drain{bound: bound, change: make(chan struct{}, 1)}
}

// Block says that a reader has begun to wait for credit.
func (d *Drain) Block() { d.add(1) }

// Unblock says that a reader that called Block has credit again, or has ended.
func (d *Drain) Unblock() { d.add(-1) }

func (d *Drain) add(n int) {
	d.mu.Lock()
	d.blocked += n
	d.mu.Unlock()
	select {
	case d.change <- struct{}{}:
	default: // one pending wake-up is enough
	}
}

func (d *Drain) isBlocked() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.blocked > 0
}

// Wait returns false and nil when ended is closed first, true and nil when the
// bound is used up first, and ctx's cause when ctx ends first. Time counts from
// the call of Wait.
func (d *Drain) Wait(ctx context.Context, ended <-chan struct{}) (held bool, err error) {
	left := d.bound
	timer := time.NewTimer(left)
	defer timer.Stop()
	for {
		var expired <-chan time.Time
		blocked, since := d.isBlocked(), time.Now()
		if !blocked {
			timer.Reset(left)
			expired = timer.C
		}
		select {
		case <-ended:
			return false, nil
		case <-expired:
			return true, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-d.change:
			if !blocked {
				left = max(0, left-time.Since(since))
			}
		}
	}
}
