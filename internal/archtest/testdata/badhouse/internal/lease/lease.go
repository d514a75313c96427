// Package lease reaches NATS through another package of ours.
package lease

import _ "github.com/weft-fabric/weft/internal/natsbus"
