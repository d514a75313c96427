package coordinator

import (
	"context"
	"sync"
)

// locks is a lock per key, held over waits; a caller whose context ends stops
// waiting for it.
type locks struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed by the holder when it lets go
}

// take waits for key and returns the function that lets it go.
func (l *locks) take(ctx context.Context, key string) (release func(), err error) {
	for {
		l.mu.Lock()
		other, taken := l.held[key]
		if !taken {
			mine := make(chan struct{})
			if l.held == nil {
				l.held = map[string]chan struct{}{}
			}
			l.held[key] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.held, key)
				l.mu.Unlock()
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
