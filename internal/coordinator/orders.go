package coordinator

import (
	"context"
	"errors"
	"strconv"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// Why an order has no answer.
var (
	errNobody  = errors.New("coordinator: no worker listens on this id")
	errNoReply = errors.New("coordinator: the worker did not answer in time")
	errReply   = errors.New("coordinator: the worker's answer cannot be read")
)

// orders sends a coordinator's word to workers.
type orders struct{ nc *nats.Conn }

// send asks worker to carry out verb and reads its answer into reply. It fails
// with errNobody (nothing was delivered), errNoReply (it may have been),
// errReply, or the worker's own refusal as a *wire.Error.
func (o *orders) send(ctx context.Context, worker, verb string, order any, body []byte, reply any) error {
	data := wire.Encode(wire.Order{Order: wire.Encode(order), Body: body})
	msg, err := o.nc.RequestWithContext(ctx, subjects.ToWorker(worker, verb), data)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return errNobody
	case err != nil:
		return errNoReply
	}
	if code := msg.Header.Get(micro.ErrorCodeHeader); code != "" {
		return workerError(wire.Code(code), msg.Data)
	}
	most := wire.MaxControlBody
	if verb == subjects.WKInventory {
		most = wire.MaxOpenBody // as of a registration, which it repeats
	}
	if len(msg.Data) > most || wire.DecodeReply(msg.Data, reply) != nil {
		return errReply
	}
	return nil
}

// detailAttach is the attach number that a worker says is the newest.
const detailAttach = "attach"

// workerError is the refusal of a worker as it may be shown to a tenant: its
// code, and its sentence if it is one.
func workerError(code wire.Code, data []byte) error {
	var e wire.Error
	if len(data) > wire.MaxControlBody || wire.DecodeReply(data, &e) != nil || e.Code != code {
		return errReply
	}
	out := wire.Errorf(code, "the worker refused; its log has the reason")
	if wire.CheckName("message", e.Message, 512) == nil && code != wire.CodeInternal {
		out.Message = e.Message
	}
	// The one detail that coordinators act on.
	if n, err := strconv.ParseUint(e.Details[detailAttach], 10, 32); err == nil {
		out = out.With(detailAttach, strconv.FormatUint(n, 10))
	}
	return out
}

// head is the common part of an order about a lease.
func head(tenant, worker, instance, lease string, epoch wire.Epoch) wire.OrderHead {
	return wire.OrderHead{
		Tenant: tenant, Worker: worker, Instance: instance, Lease: lease, Epoch: epoch,
		Nonce: uuid.NewString(), ValidBeats: 5,
	}
}
