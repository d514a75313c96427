package subjects

import (
	"fmt"
	"strings"
)

// Kind is what a subject is for.
type Kind string

// The kinds of subject.
const (
	KindData      Kind = "ch"
	KindLive      Kind = "lv"
	KindControl   Kind = "ct"
	KindHeartbeat Kind = "hb"
	KindToCoord   Kind = "wr"
	KindToWorker  Kind = "wk"
	KindAPI       Kind = "api"
	KindReplay    Kind = "rp"
	KindOperator  Kind = "op"
)

// Subject is a parsed subject. Which fields are set depends on Kind: Channel
// and Dir for ch, lv and ct; Worker for hb, wr and wk; Tenant for api and rp;
// Verb for wr, wk, api, rp and op.
type Subject struct {
	Kind    Kind
	Channel Channel
	Dir     Dir
	Worker  string
	Tenant  string
	Verb    string
}

// Parse reads a subject made by this package. Anything else, also one token
// too many or a shard that is not its channel's, is an error.
func Parse(s string) (Subject, error) {
	rest, ok := strings.CutPrefix(s, Prefix+".")
	if !ok || len(s) > 512 {
		return Subject{}, fmt.Errorf("subjects: not a weft subject")
	}
	var tok [8]string
	n := 0
	for t := range strings.SplitSeq(rest, ".") {
		if n == len(tok) {
			return Subject{}, fmt.Errorf("subjects: too many tokens")
		}
		if err := CheckToken(t); err != nil {
			return Subject{}, fmt.Errorf("subjects: token %d %w", n, err)
		}
		tok[n] = t
		n++
	}
	out := Subject{Kind: Kind(tok[0])}
	switch {
	case (out.Kind == KindData || out.Kind == KindLive) && n == 7:
		out.Channel = Channel{Tenant: tok[1], Route: tok[3], Lease: tok[4], Channel: tok[5]}
		if len(tok[5]) < 2 || out.Channel.Shard() != tok[2] {
			return Subject{}, fmt.Errorf("subjects: shard does not belong to the channel")
		}
		return withDir(out, tok[6])
	case out.Kind == KindControl && n == 6:
		out.Channel = Channel{Tenant: tok[1], Route: tok[2], Lease: tok[3], Channel: tok[4]}
		return withDir(out, tok[5])
	case out.Kind == KindHeartbeat && n == 2:
		out.Worker = tok[1]
	case (out.Kind == KindToCoord || out.Kind == KindToWorker) && n == 3:
		out.Worker, out.Verb = tok[1], tok[2]
	case (out.Kind == KindAPI || out.Kind == KindReplay) && n == 3:
		out.Tenant, out.Verb = tok[1], tok[2]
	case out.Kind == KindOperator && n == 2:
		out.Verb = tok[1]
	default:
		return Subject{}, fmt.Errorf("subjects: no subject of kind %q has %d tokens", tok[0], n)
	}
	return out, nil
}

func withDir(s Subject, tok string) (Subject, error) {
	switch tok {
	case "up":
		s.Dir = Up
	case "down":
		s.Dir = Down
	default:
		return Subject{}, fmt.Errorf("subjects: direction is neither up nor down")
	}
	return s, nil
}
