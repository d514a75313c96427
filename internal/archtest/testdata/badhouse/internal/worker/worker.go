// Package worker uses the client library and a helper for tests.
package worker

import (
	_ "github.com/weft-fabric/weft/client"
	_ "github.com/weft-fabric/weft/internal/natstest"
)

func init() {}
