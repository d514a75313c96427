package runfile

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// identity is a process that is not mistaken for a later one with its id.
// Without /proc, started is 0 and boot empty.
type identity struct {
	pid     int
	started uint64
	boot    string
}

// identify returns the running process with that id; a zombie does not run.
func identify(pid int) (identity, bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return identity{pid: pid}, !hasProc() && exists(pid)
	}
	started, runs := parseStat(string(stat))
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		boot = nil
	}
	return identity{pid: pid, started: started, boot: strings.TrimSpace(string(boot))}, runs
}

// parseStat reads state and start time. The name of the program comes before
// them in parentheses and may hold any byte, parentheses too.
func parseStat(stat string) (started uint64, runs bool) {
	i := strings.LastIndexByte(stat, ')')
	if i < 0 {
		return 0, false
	}
	const stateField, startField = 0, 19
	f := strings.Fields(stat[i+1:])
	if len(f) <= startField || f[stateField] == "Z" || f[stateField] == "X" {
		return 0, false
	}
	started, err := strconv.ParseUint(f[startField], 10, 64)
	return started, err == nil
}

func hasProc() bool {
	_, err := os.Stat("/proc/self/stat")
	return err == nil
}

func exists(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
