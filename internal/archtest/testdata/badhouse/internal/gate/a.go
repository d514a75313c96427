// Package gate is documented twice, of which this is the first.
package gate

import (
	_ "os/exec"
	"sync"
)

func f(w *sync.WaitGroup) {
	go f(w)

	w.Go(func() {})
}
