package wire

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/weft-fabric/weft/internal/subjects"
)

// Epoch is a lease's fencing token: Incarnation names the store it was counted
// in, N rises by one with every grant.
type Epoch struct {
	Incarnation string `json:"incarnation"`
	N           uint64 `json:"n"`
}

// Capability is what a plugin declares that its sandboxes can do.
type Capability string

// The capabilities; the last three are opt-in.
const (
	CapExecute                    Capability = "execute"
	CapDuplexCommandStream        Capability = "duplexCommandStream"
	CapIncrementalSessionOutput   Capability = "incrementalSessionOutput"
	CapConcurrentSyncOperations   Capability = "concurrentSyncOperations"
	MetadataSandboxProviderPlugin            = "sandboxProviderPlugin"
	MetadataPluginID                         = "pluginId"
	MetadataProvider                         = "provider"
)

// Metadata is what a worker writes on a lease once it has really provisioned
// the sandbox: the keys above and whatever else a provider wants to say.
type Metadata map[string]string

// AcquireRequest asks for a lease (api acquire). IdempotencyKey, 1 to 128
// printable bytes, makes a repeat return the first lease. Empty Plugin and
// Provider match any. TTLMS and LifeMS default to 30 s and 7 days.
type AcquireRequest struct {
	IdempotencyKey string            `json:"idempotencyKey"`
	Environment    string            `json:"environment,omitempty"`
	Plugin         string            `json:"plugin,omitempty"`
	Provider       string            `json:"provider,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	Policy         string            `json:"policy,omitempty"`
	TTLMS          int64             `json:"ttlMs,omitempty"`
	LifeMS         int64             `json:"lifeMs,omitempty"`
}

// Lease is what a tenant sees of a lease.
type Lease struct {
	ID              string       `json:"id"`
	Tenant          string       `json:"tenant"`
	Environment     string       `json:"environment,omitempty"`
	Driver          string       `json:"driver,omitempty"`
	State           string       `json:"state"`
	Policy          string       `json:"policy"`
	Epoch           Epoch        `json:"epoch"`
	Route           string       `json:"route,omitempty"`
	Plugin          string       `json:"plugin,omitempty"`   // requested
	Provider        string       `json:"provider,omitempty"` // requested
	ProviderLeaseID string       `json:"providerLeaseId,omitempty"`
	Metadata        Metadata     `json:"metadata,omitempty"`
	Capabilities    []Capability `json:"capabilities,omitempty"`
	TTLMS           int64        `json:"ttlMs"`
	CreatedAt       time.Time    `json:"createdAt"`
	ExpiresAt       time.Time    `json:"expiresAt"`
	Reason          string       `json:"reason,omitempty"`
}

// LeaseRequest names a lease (api get, renew, release). Get and list ignore
// the epoch.
type LeaseRequest struct {
	Lease string `json:"lease"`
	Epoch *Epoch `json:"epoch,omitempty"`
}

// LeaseReply answers acquire, get, renew and release.
type LeaseReply struct {
	Lease Lease `json:"lease"`
}

// ListRequest asks for the tenant's leases (api list) or channels (api
// channels); Lease narrows the latter. Cursor continues a list.
type ListRequest struct {
	Lease  string `json:"lease,omitempty"`
	Cursor string `json:"cursor,omitempty"`
}

// LeaseList answers list. Next, when not empty, is the cursor of the rest.
type LeaseList struct {
	Leases []Lease `json:"leases"`
	Next   string  `json:"next,omitempty"`
}

// DownCredit is what a client grants before it has seen a frame: absolute
// limits from offset 0, and the highest sequence a data frame may have.
type DownCredit struct {
	Stdout     uint64 `json:"stdout"`
	Stderr     uint64 `json:"stderr"`
	FrameLimit uint64 `json:"frameLimit"`
}

// OpenRequest opens a channel (api open, execute). Channel is a v4 UUID that
// the client made; it is also the idempotency key. Body is the Exec JSON.
type OpenRequest struct {
	Lease   string     `json:"lease"`
	Epoch   Epoch      `json:"epoch"`
	Channel uuid.UUID  `json:"channel"`
	Credit  DownCredit `json:"credit"`
	Body    []byte     `json:"body,omitempty"`
}

// UpCredit is the worker's first grant for stdin.
type UpCredit struct {
	Stdin      uint64 `json:"stdin"`
	FrameLimit uint64 `json:"frameLimit"`
}

// OpenReply answers open, execute: this client holds attach number Attach and
// the keys that follow. Outcome is set when a repeated open names a channel
// that has ended.
type OpenReply struct {
	Channel  uuid.UUID `json:"channel"`
	Attach   uint32    `json:"attach"`
	Route    string    `json:"route"`
	Instance string    `json:"instance"`
	Epoch    uint64    `json:"epoch"`
	KeyUp    []byte    `json:"keyUp"`
	KeyDown  []byte    `json:"keyDown"`
	Credit   UpCredit  `json:"credit"`
	Outcome  *Outcome  `json:"outcome,omitempty"`
}

// Offsets are positions in the streams that come down.
type Offsets struct {
	Stdout uint64 `json:"stdout"`
	Stderr uint64 `json:"stderr"`
}

// AttachRequest asks to hold an open channel in place of whoever holds it (api
// attach), or to read along (api observe, which ignores Credit and From). Credit
// is counted from what was acknowledged. From is what the application has safely
// received: it acknowledges up to there; where it is behind what was acknowledged
// already the reply says where the streams go on.
type AttachRequest struct {
	Lease   string     `json:"lease"`
	Epoch   Epoch      `json:"epoch"`
	Channel uuid.UUID  `json:"channel"`
	Credit  DownCredit `json:"credit"`
	From    *Offsets   `json:"from,omitempty"`
}

// AttachReply answers attach; observe and replay fill Channel, Route, Epoch, KeyDown
// and, when it has ended, Outcome alone.
type AttachReply struct {
	Channel  uuid.UUID    `json:"channel"`
	Attach   uint32       `json:"attach,omitempty"`
	Route    string       `json:"route"`
	Instance string       `json:"instance,omitempty"`
	Epoch    uint64       `json:"epoch"`
	KeyUp    []byte       `json:"keyUp,omitempty"`
	KeyDown  []byte       `json:"keyDown"`
	Up       UpPosition   `json:"up"`
	Down     DownPosition `json:"down"`
	Outcome  *Outcome     `json:"outcome,omitempty"`
}

// UpPosition is where stdin stands: the attach's first frame has sequence
// NextSeq and offset NextOffset, the count of bytes accepted; the process's pipe
// has taken Written of them. Limit and FrameLimit are credit. Ended: EOF was
// accepted. Closed: the process closed its stdin after Written bytes.
type UpPosition struct {
	NextSeq    uint64 `json:"nextSeq"`
	NextOffset uint64 `json:"nextOffset"`
	Written    uint64 `json:"written"`
	Limit      uint64 `json:"limit"`
	FrameLimit uint64 `json:"frameLimit"`
	Ended      bool   `json:"ended,omitempty"`
	Closed     bool   `json:"closed,omitempty"`
}

// DownPosition is where the output stands. Frames up to AckedSeq, and those in
// the Gone ranges (first and last, inclusive, all after AckedSeq), were
// acknowledged and are no longer kept; LastSeq is the last one published.
type DownPosition struct {
	AckedSeq uint64         `json:"ackedSeq"`
	LastSeq  uint64         `json:"lastSeq"`
	Gone     [][2]uint64    `json:"gone,omitempty"`
	Stdout   StreamPosition `json:"stdout"`
	Stderr   StreamPosition `json:"stderr"`
}

// StreamPosition is one output stream: bytes acknowledged, bytes in frames, and
// whether its EOF was acknowledged too.
type StreamPosition struct {
	Acked uint64 `json:"acked"`
	Sent  uint64 `json:"sent"`
	Ended bool   `json:"ended,omitempty"`
}

// AttachOrder makes attach number Attach the holder of a channel (wk attach).
type AttachOrder struct {
	OrderHead
	Channel uuid.UUID  `json:"channel"`
	Attach  uint32     `json:"attach"`
	Credit  DownCredit `json:"credit"`
	From    *Offsets   `json:"from,omitempty"`
}

// AttachedReply answers wk attach.
type AttachedReply struct {
	Channel  uuid.UUID    `json:"channel"`
	Instance string       `json:"instance"`
	Attach   uint32       `json:"attach"`
	Up       UpPosition   `json:"up"`
	Down     DownPosition `json:"down"`
	Outcome  *Outcome     `json:"outcome,omitempty"`
}

// ReplayRequest asks for stored frames of one direction (rp replay, wr replay).
// FromStreamSeq is the log's own sequence to go on from; 0: the oldest.
type ReplayRequest struct {
	Lease         string    `json:"lease"`
	Channel       uuid.UUID `json:"channel"`
	Direction     string    `json:"direction"` // up or down
	FromStreamSeq uint64    `json:"fromStreamSeq"`
	MaxBytes      int       `json:"maxBytes"`
}

// MaxReplay bounds the frames that answer one replay request, in bytes.
const MaxReplay = 1 << 20

// Headers of the answers to a replay: one message per stored frame with
// HeaderStreamSeq; last an empty one with Status 204, HeaderNextStreamSeq and
// HeaderLastFrameSeq.
const (
	HeaderStreamSeq     = "Weft-Stream-Seq"
	HeaderNextStreamSeq = "Weft-Next-Stream-Seq"
	HeaderLastFrameSeq  = "Weft-Last-Frame-Seq"
)

// ChannelRequest names a channel (api channel, kill).
type ChannelRequest struct {
	Lease   string    `json:"lease"`
	Channel uuid.UUID `json:"channel"`
}

// Channel is what a tenant sees of a channel record.
type Channel struct {
	ID        uuid.UUID  `json:"id"`
	Lease     string     `json:"lease"`
	Route     string     `json:"route,omitempty"`
	Mode      Mode       `json:"mode"`
	State     string     `json:"state"` // opening, open, ended
	Attach    uint32     `json:"attach"`
	Totals    *Totals    `json:"totals,omitempty"`
	Outcome   *Outcome   `json:"outcome,omitempty"`
	EndedBy   string     `json:"endedBy,omitempty"` // worker or coordinator
	CreatedAt time.Time  `json:"createdAt"`
	EndedAt   *time.Time `json:"endedAt,omitempty"`
	// WorkerState and WorkerAgeMS are how the registry sees the worker now.
	WorkerState string `json:"workerState,omitempty"`
	WorkerAgeMS int64  `json:"workerAgeMs,omitempty"`
}

// ChannelReply answers channel and kill.
type ChannelReply struct {
	Channel Channel `json:"channel"`
}

// ChannelList answers channels.
type ChannelList struct {
	Channels []Channel `json:"channels"`
	Next     string    `json:"next,omitempty"`
}

// Info answers api info: who answers, and every limit in force.
type Info struct {
	Version         string           `json:"version"`
	ProtocolVersion int              `json:"protocolVersion"`
	Coordinator     string           `json:"coordinator"`
	Limits          map[string]int64 `json:"limits"`
}

// Provider is one sandbox provider of a worker.
type Provider struct {
	Name         string       `json:"name"`
	Driver       string       `json:"driver"`
	Duplex       bool         `json:"duplex"` // the driver can do duplex at all
	Isolation    string       `json:"isolation,omitempty"`
	TreeKill     string       `json:"treeKill,omitempty"`
	Capabilities []Capability `json:"capabilities,omitempty"` // declared by the plugin
}

// RegisterRequest describes one instance of a worker (wr register).
type RegisterRequest struct {
	ProtocolVersion int               `json:"protocolVersion"`
	Version         string            `json:"version,omitempty"`
	Worker          string            `json:"worker"`
	Instance        string            `json:"instance"`
	HostBootID      string            `json:"hostBootId,omitempty"`
	Route           string            `json:"route"`
	PluginID        string            `json:"pluginId"`
	Providers       []Provider        `json:"providers,omitempty"`
	Verbs           []string          `json:"verbs,omitempty"` // verified on this instance
	Labels          map[string]string `json:"labels,omitempty"`
	Slots           int               `json:"slots"`
	Store           *StoreMark        `json:"store,omitempty"`
	Inventory       Inventory         `json:"inventory"`
}

// StoreMark is the newest state of the coordinators' store that a worker saw.
type StoreMark struct {
	Incarnation string `json:"incarnation"`
	Sequence    uint64 `json:"sequence"`
}

// Inventory is what a worker holds.
type Inventory struct {
	Leases   []InventoryLease   `json:"leases,omitempty"`
	Channels []InventoryChannel `json:"channels,omitempty"`
}

// InventoryLease is one lease on a worker.
type InventoryLease struct {
	Tenant string `json:"tenant"`
	Lease  string `json:"lease"`
	Epoch  Epoch  `json:"epoch"`
}

// InventoryChannel is one channel on a worker.
type InventoryChannel struct {
	Tenant  string    `json:"tenant"`
	Lease   string    `json:"lease"`
	Channel uuid.UUID `json:"channel"`
}

// RegisterReply tells the worker the coordinators' settings.
type RegisterReply struct {
	Coordinator string `json:"coordinator"`
	BeatMS      int64  `json:"beatMs"`
	// MinVersion and MaxVersion are the protocol versions that are accepted.
	MinVersion int `json:"minVersion"`
	MaxVersion int `json:"maxVersion"`
}

// WorkerState is what a worker says of itself in a beat.
type WorkerState string

// The states a beat may carry.
const (
	WorkerReady    WorkerState = "ready"
	WorkerDraining WorkerState = "draining"
	WorkerGoodbye  WorkerState = "goodbye"
)

// Beat is the heartbeat, at most 300 bytes.
type Beat struct {
	Instance    string      `json:"instance"`
	Seq         uint64      `json:"seq"`
	State       WorkerState `json:"state"`
	Reason      string      `json:"reason,omitempty"` // of a goodbye
	SlotsUsed   int         `json:"slotsUsed"`
	Inventory   string      `json:"inventory,omitempty"`   // digest of the inventory
	Description string      `json:"description,omitempty"` // hash of the register body
}

// MaxBeat bounds a heartbeat in bytes.
const MaxBeat = 300

// RenewRequest renews the busy leases of a worker (wr renew).
type RenewRequest struct {
	Instance string           `json:"instance"`
	Leases   []InventoryLease `json:"leases,omitempty"`
}

// RenewReply lists the leases that were not renewed and why.
type RenewReply struct {
	Refused []RefusedLease `json:"refused,omitempty"`
}

// RefusedLease is one lease that was not renewed.
type RefusedLease struct {
	Lease string `json:"lease"`
	Code  Code   `json:"code"`
}

// EndedRequest reports the end of a channel until it is answered (wr ended).
type EndedRequest struct {
	Instance string    `json:"instance"`
	Tenant   string    `json:"tenant"`
	Lease    string    `json:"lease"`
	Channel  uuid.UUID `json:"channel"`
	Outcome  Outcome   `json:"outcome"`
	Totals   Totals    `json:"totals"`
}

// EndedReply carries the outcome on record: the first writer's.
type EndedReply struct {
	Outcome Outcome `json:"outcome"`
}

// Order is a coordinator's message to a worker (wk): the JSON of the verb's
// order as sent, the exec body of an open, and an ed25519 signature over
// "weft/v1 " ‖ verb ‖ NUL ‖ order. Unsigned orders have neither key nor signature.
type Order struct {
	Order     []byte `json:"order,omitempty"`
	Body      []byte `json:"body,omitempty"`
	KeyID     string `json:"keyId,omitempty"`
	Signature []byte `json:"signature,omitempty"`
}

// OrderHead is common to all orders: whom it is for and how long it holds, in
// beats of the worker's own counting.
type OrderHead struct {
	Tenant     string `json:"tenant,omitempty"`
	Worker     string `json:"worker"`
	Instance   string `json:"instance"`
	Lease      string `json:"lease,omitempty"`
	Epoch      Epoch  `json:"epoch"`
	Nonce      string `json:"nonce,omitempty"`
	ValidBeats uint64 `json:"validBeats,omitempty"`
}

// BindOrder binds a lease to a sandbox (wk bind); idempotent on (lease, epoch).
type BindOrder struct {
	OrderHead
	Environment string `json:"environment,omitempty"`
	Provider    string `json:"provider"`
	TTLMS       int64  `json:"ttlMs"`
}

// BindReply answers bind. State is provisioning (ask again) or bound. The
// metadata and the provider lease id are the worker's word on what it made.
type BindReply struct {
	Instance        string       `json:"instance"`
	State           string       `json:"state"`
	Driver          string       `json:"driver,omitempty"`
	ProviderLeaseID string       `json:"providerLeaseId,omitempty"`
	Metadata        Metadata     `json:"metadata,omitempty"`
	Capabilities    []Capability `json:"capabilities,omitempty"`
}

// The states of a bind.
const (
	BindProvisioning = "provisioning"
	BindBound        = "bound"
)

// ReleaseOrder ends a lease (wk release). With Expire set a lease with an
// attached client or a running command answers busy instead.
type ReleaseOrder struct {
	OrderHead
	Outcome OutcomeKind `json:"outcome"` // what its channels end with
	Expire  bool        `json:"expire,omitempty"`
}

// ReleaseReply answers release.
type ReleaseReply struct {
	Instance string `json:"instance"`
	Busy     bool   `json:"busy,omitempty"`
}

// ChannelLimits bound one channel on a worker.
type ChannelLimits struct {
	Channels int `json:"channels"` // on the lease, this one included
}

// OpenOrder starts a command (wk open). The exec body travels beside it in
// Order.Body and is bound by its hash.
type OpenOrder struct {
	OrderHead
	Channel         uuid.UUID     `json:"channel"`
	Mode            Mode          `json:"mode"`
	Provider        string        `json:"provider,omitempty"`
	ProviderLeaseID string        `json:"providerLeaseId,omitempty"` // empty: find the sandbox by lease id
	Credit          DownCredit    `json:"credit"`
	Limits          ChannelLimits `json:"limits"`
	Secret          []byte        `json:"secret,omitempty"`
	BodySHA256      []byte        `json:"bodySha256,omitempty"`
}

// OpenedReply answers wk open.
type OpenedReply struct {
	Channel  uuid.UUID `json:"channel"`
	Instance string    `json:"instance"`
	Credit   UpCredit  `json:"credit"`
	Outcome  *Outcome  `json:"outcome,omitempty"` // the command did not start, or has ended already
}

// CloseOrder ends one channel (wk close).
type CloseOrder struct {
	OrderHead
	Channel uuid.UUID   `json:"channel"`
	Outcome OutcomeKind `json:"outcome"`
	Reason  string      `json:"reason,omitempty"`
}

// ProbeOrder asks whether an instance is there (wk probe).
type ProbeOrder struct {
	OrderHead
}

// ProbeReply answers probe and close.
type ProbeReply struct {
	Instance string      `json:"instance"`
	State    WorkerState `json:"state"`
}

// Worker is what an operator sees of a worker (op workers).
type Worker struct {
	Worker    string            `json:"worker"`
	Instance  string            `json:"instance,omitempty"`
	Route     string            `json:"route,omitempty"`
	State     string            `json:"state"` // live, suspect, dead, draining, unknown
	AgeMS     int64             `json:"ageMs"` // since the last beat
	PluginID  string            `json:"pluginId,omitempty"`
	Providers []Provider        `json:"providers,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Slots     int               `json:"slots"`
	SlotsUsed int               `json:"slotsUsed"`
	Cordoned  bool              `json:"cordoned,omitempty"`
	Reason    string            `json:"reason,omitempty"`
}

// WorkerList answers op workers.
type WorkerList struct {
	Workers []Worker `json:"workers"`
}

// SignedBytes is what an order's signature covers.
func SignedBytes(verb string, order []byte) []byte {
	b := append([]byte("weft/v1 "), verb...)
	b = append(b, 0)
	return append(b, order...)
}

// DecodeReply reads a reply leniently: a newer peer may have added fields.
func DecodeReply(data []byte, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return Errorf(CodeInternal, "the answer is not the JSON that this request is answered with")
	}
	return nil
}

// CheckLeaseID returns INVALID_ARGUMENT unless s is a UUID in lower-case form.
func CheckLeaseID(s string) error {
	id, err := uuid.Parse(s)
	if err != nil || id.String() != s {
		return invalid("lease is not a UUID in its 36-character lower-case form")
	}
	return nil
}

// CheckChannelID returns INVALID_ARGUMENT unless id is a version 4 UUID.
func CheckChannelID(id uuid.UUID) error {
	if id.Version() != 4 || id.Variant() != uuid.RFC4122 {
		return invalid("channel is not a version 4 UUID (RFC 9562)")
	}
	return nil
}

// CheckTenant returns INVALID_ARGUMENT unless s is a token.
func CheckTenant(s string) error { return CheckToken("tenant", s) }

// CheckToken returns INVALID_ARGUMENT, naming what, unless s is a token.
func CheckToken(what, s string) error {
	if err := subjects.CheckToken(s); err != nil {
		return invalid("%s %v", what, err)
	}
	return nil
}
