// Package deploy holds the configuration that weft ships and compiles in, so
// that the file an operator reads is the one that coordinator --embed runs.
package deploy

import _ "embed"

// NATSConf is deploy/nats.conf. It refers to the variables WEFT_LISTEN,
// WEFT_STORE and WEFT_TOKEN and gives none of them a value.
//
//go:embed nats.conf
var NATSConf string
