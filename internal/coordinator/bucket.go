package coordinator

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
)

// entry is a record and the revision at which it was seen.
type entry[T any] struct {
	rec T
	rev uint64
}

// bucket is one KV bucket: guarded writes to it, and a table that follows it.
type bucket[T any] struct {
	cas    cas
	decode func([]byte) (T, error)
	// changed is called, without the lock, for every newer version of a record;
	// old is the version before, zero if there was none. The calls come one after
	// the other and in the order of a record's revisions, whoever brings them, and
	// before apply returns. It must not wait or write. It is set before the table
	// is used.
	changed func(key string, old, rec T)

	mu      sync.Mutex
	table   map[string]entry[T]
	told    chan struct{}            // closed when the newest call of changed has returned
	seen    uint64                   // highest revision taken from the watch
	waiters map[string]chan struct{} // closed when the key changes
}

func newBucket[T any](js jetstream.JetStream, name string, decode func([]byte) (T, error), log zerolog.Logger) *bucket[T] {
	return &bucket[T]{
		cas:    cas{js: js, bucket: name, log: log.With().Str("bucket", name).Logger()},
		decode: decode, table: map[string]entry[T]{}, waiters: map[string]chan struct{}{},
	}
}

// peek returns the record as the table has it.
func (b *bucket[T]) peek(key string) (entry[T], bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.table[key]
	return e, ok
}

// load reads the record from the store; ok is false when there is none.
func (b *bucket[T]) load(ctx context.Context, key string) (e entry[T], ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	msg, err := b.cas.raw(ctx, key)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return e, false, nil
	}
	if err != nil {
		return e, false, unavailable(b.cas.log, "read", err)
	}
	rec, err := b.decode(msg.Data)
	if err != nil {
		return e, false, err
	}
	b.apply(key, rec, msg.Sequence)
	return entry[T]{rec, msg.Sequence}, true, nil
}

// create writes a record that must not be there: errFenced if it is.
func (b *bucket[T]) create(ctx context.Context, key string, rec T) (entry[T], error) {
	return b.update(ctx, key, entry[T]{rec: rec})
}

// update writes e.rec over revision e.rev and returns it with its new revision.
func (b *bucket[T]) update(ctx context.Context, key string, e entry[T]) (entry[T], error) {
	rev, err := b.cas.put(ctx, key, e.rec, e.rev)
	if err != nil {
		return entry[T]{}, err
	}
	b.apply(key, e.rec, rev)
	return entry[T]{e.rec, rev}, nil
}

// errUnchanged stops modify without a write.
var errUnchanged = errors.New("coordinator: nothing to write")

// modify applies f to the record until one write succeeds. f must be pure; when
// it returns errUnchanged, modify returns the record as it is and no error.
// found is false, and f never called, when there is no record.
func (b *bucket[T]) modify(ctx context.Context, key string, f func(T) (T, error)) (e entry[T], found bool, err error) {
	e, found = b.peek(key)
	for {
		if !found {
			if e, found, err = b.load(ctx, key); err != nil || !found {
				return e, found, err
			}
		}
		next, err := f(e.rec)
		if errors.Is(err, errUnchanged) {
			return e, true, nil
		}
		if err != nil {
			return e, true, err
		}
		out, err := b.update(ctx, key, entry[T]{next, e.rev})
		if !errors.Is(err, errFenced) {
			return out, true, err
		}
		found = false
	}
}

// apply takes a newer version of a record into the table.
func (b *bucket[T]) apply(key string, rec T, rev uint64) {
	b.mu.Lock()
	old := b.table[key]
	if old.rev >= rev {
		b.mu.Unlock()
		return
	}
	b.table[key] = entry[T]{rec, rev}
	if w, ok := b.waiters[key]; ok {
		close(w)
		delete(b.waiters, key)
	}
	if b.changed == nil {
		b.mu.Unlock()
		return
	}
	// Its turn is taken with the lock held, so that turns are in the order of the
	// table's changes; the call itself is made without it.
	before, mine := b.told, make(chan struct{})
	b.told = mine
	b.mu.Unlock()
	defer close(mine)
	if before != nil {
		<-before
	}
	b.changed(key, old.rec, rec)
}

// forget drops a record from the table, unless it has changed since e was seen.
func (b *bucket[T]) forget(key string, rev uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.table[key].rev == rev {
		delete(b.table, key)
	}
}

// wait returns the record as soon as until holds for it. Between changes it also
// looks into the store, in case the watch is behind.
func (b *bucket[T]) wait(ctx context.Context, key string, until func(T) bool) (entry[T], error) {
	for {
		b.mu.Lock()
		e, ok := b.table[key]
		if ok && until(e.rec) {
			b.mu.Unlock()
			return e, nil
		}
		w := b.waiters[key]
		if w == nil {
			w = make(chan struct{})
			b.waiters[key] = w
		}
		b.mu.Unlock()
		t := time.NewTimer(500 * time.Millisecond)
		select {
		case <-w:
		case <-t.C:
			if _, _, err := b.load(ctx, key); err != nil {
				t.Stop()
				return e, err
			}
		case <-ctx.Done():
			t.Stop()
			return e, ctx.Err()
		}
		t.Stop()
	}
}

// all returns the keys and records of the table for which keep holds.
func (b *bucket[T]) all(keep func(key string, rec T) bool) map[string]entry[T] {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]entry[T]{}
	for k, e := range b.table {
		if keep(k, e.rec) {
			out[k] = e
		}
	}
	return out
}

// count counts the records of the table for which keep holds.
func (b *bucket[T]) count(keep func(key string, rec T) bool) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for k, e := range b.table {
		if keep(k, e.rec) {
			n++
		}
	}
	return n
}

// follow keeps the table on the bucket's watch until ctx is done or the watch
// fails; loaded is called when everything that was there has been taken.
func (b *bucket[T]) follow(ctx context.Context, loaded func()) error {
	kv, err := b.cas.js.KeyValue(ctx, b.cas.bucket)
	if err != nil {
		return err
	}
	w, err := kv.WatchAll(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = w.Stop() }()
	check := time.NewTicker(watchCheck)
	defer check.Stop()
	var last uint64 // what the store had at the previous check
	for {
		select {
		case e, ok := <-w.Updates():
			if !ok {
				return errors.New("the watch ended")
			}
			if e == nil {
				loaded()
				continue
			}
			b.take(e)
		case <-check.C:
			have, err := b.lastSeq(ctx)
			if err != nil {
				return err
			}
			b.mu.Lock()
			behind := b.seen < last
			b.mu.Unlock()
			if behind {
				return errors.New("the watch is behind the store")
			}
			last = have
		case <-ctx.Done():
			return nil
		}
	}
}

// watchCheck is how often a watch is compared with the store: a watch that has
// not delivered within one period what was there at its start is begun again.
const watchCheck = 30 * time.Second

func (b *bucket[T]) lastSeq(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	info, err := b.cas.stream.Info(ctx)
	if err != nil {
		return 0, err
	}
	return info.State.LastSeq, nil
}

func (b *bucket[T]) take(e jetstream.KeyValueEntry) {
	b.mu.Lock()
	b.seen = max(b.seen, e.Revision())
	b.mu.Unlock()
	if e.Operation() != jetstream.KeyValuePut || strings.HasPrefix(e.Key(), "_weft/") {
		return
	}
	rec, err := b.decode(e.Value())
	if err != nil {
		b.cas.log.Error().Err(err).Str("key", e.Key()).Msg("a record does not decode; it is left alone")
		return
	}
	b.apply(e.Key(), rec, e.Revision())
}
