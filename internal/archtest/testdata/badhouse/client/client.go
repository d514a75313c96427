// Package client is what agents use and links a server by mistake.
package client

import (
	_ "github.com/nats-io/nats.go"
	_ "github.com/weft-fabric/weft/internal/embedded"
)
