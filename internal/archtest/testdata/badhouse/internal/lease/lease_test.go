package lease_test

import (
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/nats-io/nats-server/v2/server"
	_ "github.com/nats-io/nats.go"
	_ "github.com/weft-fabric/weft/internal/natstest"
)

func TestBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Second)
	})
}

func TestSleep(t *testing.T) {
	time.Sleep(time.Second)
}
