// Package natstest is a helper for tests and may import the embedded server.
package natstest

import (
	_ "github.com/nats-io/nats.go"
	_ "github.com/weft-fabric/weft/internal/embedded"
)
