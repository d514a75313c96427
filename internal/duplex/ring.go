package duplex

import "time"

// ringAllows reports whether a new frame may be published without pushing a
// stored copy of an unacknowledged frame out of the log's ring. It first stores
// again what is old.
func (s *sender) ringAllows(now time.Time) bool {
	if s.stores-s.keptMin < ringGuard {
		return true
	}
	s.keptMin = s.stores
	oldest := s.stores // kept of the frame whose copy is oldest and not yet replaced
	for _, f := range s.frames {
		if f.kept == 0 {
			continue
		}
		if f.stored && s.stores-f.kept >= ringGuard && s.stores-min(oldest, f.kept) < ringFull {
			f.stored = false
			s.addUnstored(f)
			s.publish(now, f)
		}
		oldest = min(oldest, f.kept)
	}
	s.keptMin = oldest
	return s.stores-oldest < ringNew
}

// addUnstored puts f back among the frames without a store ack, by sequence.
func (s *sender) addUnstored(f *outFrame) {
	i := 0
	for i < len(s.unstored) && s.unstored[i].seq < f.seq {
		i++
	}
	s.unstored = append(s.unstored, nil)
	copy(s.unstored[i+1:], s.unstored[i:])
	s.unstored[i] = f
}

// onStored takes the log's ack of a publish.
func (s *sender) onStored(now time.Time, id, streamSeq uint64) {
	if id > s.stores || id == 0 {
		return
	}
	if id > s.logID {
		lost := streamSeq < s.logSeq
		s.logID, s.logSeq = id, streamSeq
		if lost {
			// A later publish got a lower sequence: the log was lost. Everything that
			// is not acknowledged is stored again, in order.
			s.restoreAll(now, id)
			return
		}
	}
	oldest := len(s.unstored) > 0 && s.unstored[0].is(id)
	for i, f := range s.unstored {
		if f.is(id) {
			f.stored, f.kept = true, id
			s.unstored = append(s.unstored[:i], s.unstored[i+1:]...)
			s.storeProgress(now)
			break
		}
	}
	if oldest && s.held {
		s.held = false
		for _, f := range s.unstored {
			if f.published {
				s.publish(now, f) // these were in flight when the log fell silent
			}
		}
	}
	s.publishNew(now)
	s.flush(now)
}

// storeProgress restarts the repeat clock after a frame left unstored.
func (s *sender) storeProgress(now time.Time) {
	if len(s.unstored) == 0 || !s.unstored[0].published {
		s.repeatAt = time.Time{}
		return
	}
	s.repeatGap = repeatMin
	s.repeatAt = now.Add(s.repeatGap)
	s.waiting = now
}

// restoreAll stores every unacknowledged frame again but the oldest, if it was
// that one's publish id that has just been acked.
func (s *sender) restoreAll(now time.Time, id uint64) {
	s.unstored = s.unstored[:0]
	s.held = false
	for i, f := range s.frames {
		f.kept = 0
		f.stored = i == 0 && f.is(id)
		if f.stored {
			f.kept = id
			continue
		}
		f.published = false
		s.unstored = append(s.unstored, f)
	}
	s.repeatAt = time.Time{}
	s.publishNew(now)
	s.flush(now)
}

// onRefused takes the log's refusal: only the oldest is tried again, by the clock.
func (s *sender) onRefused(now time.Time, id uint64) {
	if len(s.unstored) == 0 || id > s.stores {
		return
	}
	s.held = true
	if s.repeatAt.IsZero() {
		s.repeatGap = repeatMin
		s.repeatAt = now.Add(s.repeatGap)
		s.waiting = now
	}
}
