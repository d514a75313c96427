package channel

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/wire"
)

// State is where a channel is in its life. The values are stored and shown.
type State string

// The states.
const (
	Opening State = "opening"
	Open    State = "open"
	Ended   State = "ended"
)

// By is who recorded the end.
type By string

// Who may end a channel.
const (
	ByWorker      By = "worker"
	ByCoordinator By = "coordinator"
)

// FirstAttach is the number that the opener of a channel holds.
const FirstAttach = 1

// MaxRecord bounds a stored record in bytes.
const MaxRecord = 16 << 10

// Home is the worker and the lease epoch that a channel belongs to.
type Home struct {
	Worker   string     `json:"worker"`
	Instance string     `json:"instance"`
	Route    string     `json:"route"`
	Epoch    wire.Epoch `json:"epoch"`
}

// End is the one recorded end.
type End struct {
	Outcome wire.Outcome `json:"outcome"`
	Totals  *wire.Totals `json:"totals,omitempty"`
	By      By           `json:"by"`
	At      time.Time    `json:"at"`
}

// Record is one channel as stored. Treat it as a value.
type Record struct {
	ID       uuid.UUID     `json:"id"`
	Tenant   string        `json:"tenant"`
	Lease    string        `json:"lease"`
	Mode     wire.Mode     `json:"mode"`
	BodyHash []byte        `json:"bodyHash"` // SHA-256 of the exec body as sent
	Home     Home          `json:"home"`
	State    State         `json:"state"`
	Attach   uint32        `json:"attach"` // newest
	Secret   []byte        `json:"secret"`
	Credit   wire.UpCredit `json:"credit,omitzero"` // the worker's first grant, for a repeated open
	Created  time.Time     `json:"created"`
	Opened   time.Time     `json:"opened,omitzero"`
	End      *End          `json:"end,omitempty"`
}

// New is the record that gate check 9 creates. secret has wire.SecretSize bytes.
func New(now time.Time, tenant, lease string, id uuid.UUID, mode wire.Mode, body []byte, home Home, secret []byte) Record {
	hash := wire.BodyHash(body)
	return Record{
		ID: id, Tenant: tenant, Lease: lease, Mode: mode, BodyHash: hash[:], Home: home,
		State: Opening, Attach: FirstAttach, Secret: secret, Created: stamp(now),
	}
}

// Matches returns CONFLICT unless a repeated open asks for this very channel:
// the same body in the same mode.
func (r Record) Matches(body []byte, mode wire.Mode) error {
	hash := wire.BodyHash(body)
	if r.Mode != mode || subtle.ConstantTimeCompare(hash[:], r.BodyHash) != 1 {
		return wire.Errorf(wire.CodeConflict, "a channel with this id was opened with another command; make a new id for a new command")
	}
	return nil
}

// WithOpened moves to open with the worker's first grant. Of an open record it
// returns the record unchanged; of an ended one CHANNEL_ENDED.
func (r Record) WithOpened(now time.Time, credit wire.UpCredit) (Record, error) {
	switch r.State {
	case Open:
		return r, nil
	case Ended:
		return r, wire.Errorf(wire.CodeChannelEnded, "the channel ended as %s before it was open; open a new one", r.Outcome())
	}
	r.State, r.Opened, r.Credit = Open, stamp(now), credit
	return r, nil
}

// WithEnd records the end. The first writer wins: changed is false, and the
// record what it was, if it has ended already. An outcome without a kind is
// recorded as unknown.
func (r Record) WithEnd(now time.Time, by By, o wire.Outcome, totals *wire.Totals) (rec Record, changed bool) {
	if r.State == Ended {
		return r, false
	}
	if o.Kind == "" {
		o.Kind = wire.Unknown
	}
	r.State = Ended
	r.End = &End{Outcome: o, Totals: totals, By: by, At: stamp(now)}
	return r, true
}

// WithAttach gives the channel to the next attach: one more than the newest on
// record or held, whichever is higher. held is what the worker is known to have
// (it gives numbers away by itself on the channel's control subject), 0 if it was
// not asked. Also of an ended channel: its worker may still have bytes for a
// reader. INVALID_ARGUMENT for a one-shot execution.
func (r Record) WithAttach(held uint32) (Record, error) {
	if err := r.CheckShared(); err != nil {
		return r, err
	}
	r.Attach = max(r.Attach, held) + 1
	if r.Attach < FirstAttach {
		return r, wire.Errorf(wire.CodeConflict, "the channel's attach numbers are used up; open a new one")
	}
	return r, nil
}

// CheckShared returns INVALID_ARGUMENT if nobody but its opener may have to do
// with the channel's streams.
func (r Record) CheckShared() error {
	if r.Mode == wire.ModeExecute {
		return wire.Errorf(wire.CodeInvalidArgument, "the channel is a one-shot execution, which takes no attach by others; ask for its outcome instead")
	}
	return nil
}

// Outcome is the recorded one, or unknown while there is none.
func (r Record) Outcome() wire.Outcome {
	if r.End == nil {
		return wire.Outcome{Kind: wire.Unknown}
	}
	return r.End.Outcome
}

// Reply answers an open or a repeat of it, with the keys of the first attach. A
// holder that is not the newest any more is fenced by the worker.
func (r Record) Reply() wire.OpenReply {
	up, down := wire.KeyUp(r.Secret, FirstAttach), wire.KeyDown(r.Secret)
	reply := wire.OpenReply{
		Channel: r.ID, Attach: FirstAttach, Route: r.Home.Route, Instance: r.Home.Instance,
		Epoch: r.Home.Epoch.N, KeyUp: up[:], KeyDown: down[:], Credit: r.Credit,
	}
	if r.End != nil {
		o := r.End.Outcome
		reply.Outcome = &o
	}
	return reply
}

// Reading answers who may read what there is and hold nothing: the key of the
// way down and, when it has ended, the outcome.
func (r Record) Reading() wire.AttachReply {
	down := wire.KeyDown(r.Secret)
	reply := wire.AttachReply{Channel: r.ID, Route: r.Home.Route, Epoch: r.Home.Epoch.N, KeyDown: down[:]}
	if r.End != nil {
		o := r.End.Outcome
		reply.Outcome = &o
	}
	return reply
}

// Held answers the holder of the record's newest attach.
func (r Record) Held(up wire.UpPosition, down wire.DownPosition) wire.AttachReply {
	key := wire.KeyUp(r.Secret, r.Attach)
	reply := r.Reading()
	reply.Attach, reply.Instance, reply.KeyUp, reply.Up, reply.Down, reply.Outcome = r.Attach, r.Home.Instance, key[:], up, down, nil
	return reply
}

// View is what the tenant sees: no secret, no worker name.
func (r Record) View() wire.Channel {
	v := wire.Channel{
		ID: r.ID, Lease: r.Lease, Route: r.Home.Route, Mode: r.Mode, State: string(r.State),
		Attach: r.Attach, CreatedAt: r.Created,
	}
	if e := r.End; e != nil {
		o, at := e.Outcome, e.At
		v.Outcome, v.EndedAt, v.EndedBy, v.Totals = &o, &at, string(e.By), e.Totals
	}
	return v
}

// Encode is the stored form.
func (r Record) Encode() []byte { return wire.Encode(r) }

// Decode reads a stored record and refuses what Encode does not write.
func Decode(data []byte) (Record, error) {
	var r Record
	if err := wire.DecodeStrict(data, MaxRecord, &r); err != nil {
		return Record{}, fmt.Errorf("channel: stored record: %v", err)
	}
	if err := r.check(); err != nil {
		return Record{}, fmt.Errorf("channel: stored record: %v", err)
	}
	return r, nil
}

func (r Record) check() error {
	if err := wire.CheckChannelID(r.ID); err != nil {
		return err
	}
	if err := wire.CheckTenant(r.Tenant); err != nil {
		return err
	}
	if err := wire.CheckLeaseID(r.Lease); err != nil {
		return err
	}
	for _, t := range []struct{ name, value string }{{"worker", r.Home.Worker}, {"instance", r.Home.Instance}, {"route", r.Home.Route}} {
		if err := wire.CheckToken(t.name, t.value); err != nil {
			return err
		}
	}
	switch {
	case r.Mode != wire.ModeDuplex && r.Mode != wire.ModeExecute:
		return fmt.Errorf("mode is unknown")
	case len(r.BodyHash) != sha256.Size:
		return fmt.Errorf("body hash is not SHA-256")
	case len(r.Secret) != wire.SecretSize:
		return fmt.Errorf("secret is not %d bytes", wire.SecretSize)
	case r.State != Opening && r.State != Open && r.State != Ended:
		return fmt.Errorf("state is unknown")
	case (r.State == Ended) != (r.End != nil):
		return fmt.Errorf("state and end disagree")
	case r.End != nil && (r.End.Outcome.Kind == "" || r.End.By != ByWorker && r.End.By != ByCoordinator):
		return fmt.Errorf("end is incomplete")
	case r.Attach < FirstAttach:
		return fmt.Errorf("attach is below %d", FirstAttach)
	}
	return nil
}

// NotFound is the answer for a channel that is not there and for another tenant's.
func NotFound() *wire.Error {
	return wire.Errorf(wire.CodeNotFound, "there is no such channel; list the lease's channels to see those that are there")
}

// stamp drops what a stored time does not keep.
func stamp(t time.Time) time.Time { return t.UTC().Round(0) }
