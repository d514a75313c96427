package duplex

import "sync"

// Pool bounds the bytes that a group of ends has in flight: taken to send and
// not acknowledged. Every end of the group has a share that is always its own,
// so that one whose reader resumes goes on whatever the others hold; beyond the
// shares they borrow, first come, first served.
type Pool struct {
	parent *Pool
	share  int64

	mu      sync.Mutex // taken with an End's mu held; nothing is taken under it
	free    int64
	waiting []*End
}

// NewPool makes a pool of limit bytes for at most ends ends; half of it is
// shares. What is borrowed counts against parent as well, if there is one; the
// share of an end is the smaller of the two.
func NewPool(limit int64, ends int, parent *Pool) *Pool {
	p := &Pool{parent: parent, share: limit / 2 / int64(max(ends, 1))}
	if parent != nil {
		p.share = min(p.share, parent.share)
	}
	p.free = limit - p.share*int64(ends)
	return p
}

// borrow takes up to n bytes; e waits for more if it gets fewer.
func (p *Pool) borrow(n int64, e *End) int64 {
	if p.parent != nil {
		n = p.parent.borrow(n, e)
	}
	p.mu.Lock()
	got := min(n, p.free)
	p.free -= got
	if got < n {
		p.wait(e)
	}
	p.mu.Unlock()
	if got < n && p.parent != nil {
		p.parent.give(n - got)
	}
	return got
}

// Free is how many bytes beyond the shares are not borrowed.
func (p *Pool) Free() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.free
}

func (p *Pool) wait(e *End) {
	for _, w := range p.waiting {
		if w == e {
			return
		}
	}
	p.waiting = append(p.waiting, e)
}

// give returns n bytes and the ends that may go on now.
func (p *Pool) give(n int64) []*End {
	var wake []*End
	if p.parent != nil {
		wake = p.parent.give(n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free += n
	// As many as there is room for, one frame each; the others stay in line.
	k := min(len(p.waiting), int(p.free/(64<<10))+1)
	wake = append(wake, p.waiting[:k]...)
	p.waiting = append(p.waiting[:0:0], p.waiting[k:]...)
	return wake
}

// loan is what one end has in flight and has borrowed for it.
type loan struct {
	pool     *Pool // nil: unbounded
	inFlight int64
	borrowed int64
}

// minTake is what an end takes without borrowing rather than borrow for more.
const minTake = 4096

// take takes up to n bytes for e and returns how many it got, perhaps none: e
// is then in line and will be woken.
func (l *loan) take(n int, e *End) int {
	if l.pool == nil || n <= 0 {
		return n
	}
	own := l.pool.share + l.borrowed - l.inFlight
	if own < min(int64(n), minTake) {
		got := l.pool.borrow(int64(n)-own, e)
		l.borrowed += got
		own += got
	}
	n = int(min(int64(n), own))
	l.inFlight += int64(n)
	return n
}

// ready reports whether take would get anything; if not, e is in line.
func (l *loan) ready(e *End) bool {
	if l.pool == nil || l.pool.share+l.borrowed > l.inFlight {
		return true
	}
	if got := l.pool.borrow(1, e); got == 0 {
		return false
	}
	l.borrowed++
	return true
}

// acked returns n bytes; the ends that may go on now come back.
func (l *loan) acked(n int64) []*End {
	if l.pool == nil {
		return nil
	}
	l.inFlight -= n
	over := min(l.borrowed, l.borrowed+l.pool.share-l.inFlight)
	if over <= 0 {
		return nil
	}
	l.borrowed -= over
	return l.pool.give(over)
}

// close gives back everything.
func (l *loan) close() []*End {
	if l.pool == nil || l.borrowed == 0 {
		return nil
	}
	n := l.borrowed
	l.inFlight, l.borrowed = 0, 0
	return l.pool.give(n)
}
