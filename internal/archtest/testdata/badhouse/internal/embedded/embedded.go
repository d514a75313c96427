// Package embedded is the one place that may import the NATS server.
package embedded

import _ "github.com/nats-io/nats-server/v2/server"
