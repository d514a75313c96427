// Package sandbox is a driver that talks to NATS behind our back.
package sandbox

import _ "github.com/weft-fabric/weft/internal/natsbus"
