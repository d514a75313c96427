package embedded

import (
	"fmt"
	"sync/atomic"

	"github.com/rs/zerolog"
)

// bridge is the server's logger. The server's notices are details to a weft
// user, so they go to debug; its Fatalf does not end the process but is kept
// for Start to report.
type bridge struct {
	log   zerolog.Logger
	fatal atomic.Pointer[string]
}

func (b *bridge) Noticef(format string, v ...any) { b.log.Debug().Msgf(format, v...) }
func (b *bridge) Debugf(format string, v ...any)  { b.log.Trace().Msgf(format, v...) }
func (b *bridge) Tracef(format string, v ...any)  { b.log.Trace().Msgf(format, v...) }
func (b *bridge) Warnf(format string, v ...any)   { b.log.Warn().Msgf(format, v...) }
func (b *bridge) Errorf(format string, v ...any)  { b.log.Warn().Msgf(format, v...) }

func (b *bridge) Fatalf(format string, v ...any) {
	b.fatal.CompareAndSwap(nil, new(fmt.Sprintf(format, v...)))
	b.log.Warn().Msgf(format, v...)
}
