package sandbox

// AbandonLock gives up d's root as the death of its process would.
func AbandonLock(d *Local) { _ = d.lock.Close() }
