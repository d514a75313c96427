package sandbox

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// scanTree finds processes by reading /proc: those that carry the mark, those
// in the leader's process group or session, and their descendants.
type scanTree struct {
	mark   string       // value of WEFT_SANDBOX; of parts: mark + "/" + name
	leader atomic.Int32 // 0 until started
}

func (t *scanTree) sub(name string) (tree, error) {
	return &scanTree{mark: strings.TrimPrefix(t.mark+"/"+name, "/")}, nil
}

func (t *scanTree) dir() (*os.File, error) { return nil, nil }
func (t *scanTree) lead(pid int)           { t.leader.Store(int32(pid)) }
func (t *scanTree) kill() error            { return signalTree(t, syscall.SIGKILL) }
func (t *scanTree) remove() error          { return nil }

func (t *scanTree) alive() ([]int, error) {
	procs, err := readProcs()
	if err != nil {
		return nil, err
	}
	leader := int(t.leader.Load())
	member := make(map[int]bool, 8)
	for _, p := range procs {
		if leader != 0 && (p.pid == leader || p.pgrp == leader || p.session == leader) || hasMark(p.pid, t.mark) {
			member[p.pid] = true
		}
	}
	for grew := true; grew; {
		grew = false
		for _, p := range procs {
			if !member[p.pid] && member[p.ppid] {
				member[p.pid], grew = true, true
			}
		}
	}
	var pids []int
	for _, p := range procs {
		if member[p.pid] && p.state != 'Z' && p.state != 'X' {
			pids = append(pids, p.pid)
		}
	}
	return pids, nil
}

type procStat struct {
	pid, ppid, pgrp, session int
	state                    byte
}

func readProcs() ([]procStat, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	procs := make([]procStat, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if p, ok := readStat(pid); ok {
				procs = append(procs, p)
			}
		}
	}
	return procs, nil
}

// readStat reads /proc/pid/stat; false when the process has gone.
func readStat(pid int) (procStat, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	// The name in parentheses may contain anything, parentheses too.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 4 {
		return procStat{}, false
	}
	p := procStat{pid: pid, state: fields[0][0]}
	for i, to := range []*int{&p.ppid, &p.pgrp, &p.session} {
		if *to, err = strconv.Atoi(string(fields[i+1])); err != nil {
			return procStat{}, false
		}
	}
	return p, true
}

// hasMark reports whether the process started with mark, or a part of it, as
// its WEFT_SANDBOX. What may not be read is not ours.
func hasMark(pid int, mark string) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		value, ok := strings.CutPrefix(string(entry), markName+"=")
		if ok {
			return value == mark || strings.HasPrefix(value, mark+"/")
		}
	}
	return false
}
