// Package natsbus is an adapter and may import the NATS client.
package natsbus

import _ "github.com/nats-io/nats.go/jetstream"
