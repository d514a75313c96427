package client

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-fabric/weft/internal/duplex"
	"github.com/weft-fabric/weft/internal/subjects"
	"github.com/weft-fabric/weft/internal/wire"
)

// replays makes the double's coordinators answer replays.
func (d *double) replays() {
	d.set("replay", func(context.Context, []byte) ([]byte, error) { return nil, nil })
}

// What the worker had stored before it was lost is read from the log; an EXIT in
// it beats the record.
func TestReplay_WhatTheLostWorkerHadStored(t *testing.T) {
	for name, c := range map[string]struct {
		exit bool
		want string
	}{"with EXIT": {true, "exited(6)"}, "without": {false, "worker_lost"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDouble(t)
				d.replays()
				d.script = func(w *duplex.End, _ *wire.Exec) *wire.Outcome {
					for range 5 {
						say(t, w, wire.Stdout, "line\n")
					}
					if c.exit {
						w.Finish(wire.ExitedWith(6))
					}
					return nil
				}
				d.filter = func(string, []byte) bool { return false }
				d.set(subjects.APIChannel, recorded(wire.Outcome{Kind: wire.WorkerLost}, nil))
				d.setKeepalive(noResponders)
				ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
				d.forget()
				out, rerr := io.ReadAll(ch)
				if string(out) != strings.Repeat("line\n", 5) || (rerr == nil) != c.exit {
					t.Errorf("read %q, %v", out, rerr)
				}
				if o, err := ch.Wait(); o.String() != c.want || (err == nil) != c.exit {
					t.Errorf("Wait: %v, %v", o, err)
				}
			})
		})
	}
}

// Neither sender nor log has frame 2: its one byte is counted.
func TestC009_TheLogLacksItToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		d.replays()
		d.script = func(w *duplex.End, _ *wire.Exec) *wire.Outcome {
			say(t, w, wire.Stdout, strings.Repeat("x", 9_999))
			synctest.Wait()
			say(t, w, wire.Stdout, "y")
			w.Finish(wire.ExitedWith(0))
			return nil
		}
		d.filter = func(string, []byte) bool { return false }
		d.set(subjects.APIChannel, recorded(wire.ExitedWith(0), &wire.Totals{Stdout: 10_000}))
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
		synctest.Wait()
		d.forget()
		d.mu.Lock()
		d.log = slices.DeleteFunc(d.log, func(b []byte) bool {
			f, err := wire.DecodeFrame(b)
			return err == nil && f.Seq == 2
		})
		d.mu.Unlock()
		out, rerr := io.ReadAll(ch)
		o, err := ch.Wait()
		if o.Kind != DataLost || o.Bytes != 1 || o.Offset != 9_999 || len(out) != 9_999 || CodeOf(err) == "" || CodeOf(rerr) == "" {
			t.Errorf("Wait: %+v, %v; read %d bytes, %v", o, err, len(out), rerr)
		}
	})
}

// A replay that is not answered is asked again, within bounds.
func TestReplay_NoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDouble(t)
		d.set("replay", silence)
		d.set(subjects.APIChannel, recorded(wire.Outcome{Kind: wire.WorkerLost}, nil))
		d.setKeepalive(noResponders)
		ch := mustOpen(t, d.lease(d.client(Options{})), Command{})
		if o, err := ch.Wait(); o.Kind != WorkerLost || err == nil {
			t.Errorf("Wait: %v, %v", o, err)
		}
		if n := d.asked("replay"); n != replayTries {
			t.Errorf("%d requests", n)
		}
	})
}

func TestRemains(t *testing.T) {
	out := func(seq, offset uint64, n int) logged {
		return logged{Frame: wire.Frame{Type: wire.FrameStdout, Stream: wire.Stdout, Seq: seq, Offset: offset, Payload: make([]byte, n)}}
	}
	errs := func(seq, offset uint64, n int) logged {
		return logged{Frame: wire.Frame{Type: wire.FrameStderr, Stream: wire.Stderr, Seq: seq, Offset: offset, Payload: make([]byte, n)}}
	}
	eof := func(seq, offset uint64, st wire.Stream) logged {
		return logged{Frame: wire.Frame{Type: wire.FrameEOF, Stream: st, Seq: seq, Offset: offset}}
	}
	exit := func(seq uint64) logged { return logged{Frame: wire.Frame{Type: wire.FrameExit, Seq: seq}} }
	at := func(acked, sent uint64, ended bool) wire.StreamPosition {
		return wire.StreamPosition{Acked: acked, Sent: sent, Ended: ended}
	}
	many := []logged{}
	for i := range uint64(100) {
		many = append(many, out(i+1, i*10, 10))
	}
	for name, c := range map[string]struct {
		left   []logged
		totals *wire.Totals
		down   wire.DownPosition
		kept   []uint64
	}{
		"nothing, nobody knows": {down: wire.DownPosition{}},
		"nothing, on record":    {totals: &wire.Totals{Stdout: 7}, down: wire.DownPosition{Stdout: at(7, 7, true), Stderr: at(0, 0, true)}},
		"all": {
			left: []logged{out(1, 0, 5), errs(2, 0, 3), eof(3, 5, wire.Stdout), eof(4, 3, wire.Stderr), exit(5)},
			down: wire.DownPosition{LastSeq: 5, Stdout: at(0, 5, false), Stderr: at(0, 3, false)}, kept: []uint64{1, 2, 3, 4, 5},
		},
		"a stderr frame that nobody took among newer ones": {
			left: []logged{errs(4, 9, 3), out(90, 500, 10), out(91, 510, 10), eof(92, 520, wire.Stdout), eof(93, 12, wire.Stderr), exit(94)},
			down: wire.DownPosition{AckedSeq: 3, LastSeq: 94, Gone: [][2]uint64{{5, 89}}, Stdout: at(500, 520, false), Stderr: at(9, 12, false)},
			kept: []uint64{4, 90, 91, 92, 93, 94},
		},
		"a hole in the past": {
			left: []logged{out(3, 20, 10), out(5, 40, 10), out(6, 50, 10), exit(7)}, totals: &wire.Totals{Stdout: 60},
			down: wire.DownPosition{AckedSeq: 4, LastSeq: 7, Stdout: at(40, 60, true), Stderr: at(0, 0, true)}, kept: []uint64{5, 6, 7},
		},
		"only as many as can be unacknowledged": {
			left: many,
			down: wire.DownPosition{AckedSeq: 60, LastSeq: 100, Stdout: at(600, 1000, false)},
			kept: func() (s []uint64) {
				for i := range uint64(40) {
					s = append(s, 61+i)
				}
				return s
			}(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			left := map[uint64]logged{}
			for _, f := range c.left {
				left[f.Seq] = f
			}
			down, kept := remains(left, c.totals)
			var seqs []uint64
			for _, f := range kept {
				seqs = append(seqs, f.Seq)
			}
			if d := cmp.Diff(c.down, down) + cmp.Diff(c.kept, seqs); d != "" {
				t.Error(d)
			}
		})
	}
}
