package sandbox

import (
	"path"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/internal/wire"
)

const (
	markName    = "WEFT_SANDBOX"
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// hijackNames make a loader, a shell or an interpreter run or load something
// that the command line does not name. The first lines are what the C library
// itself drops for privileged programs (ld.so(8), secure-execution mode).
var hijackNames = []string{
	"GCONV_PATH", "GETCONF_DIR", "GLIBC_TUNABLES", "HOSTALIASES", "LOCALDOMAIN",
	"LOCPATH", "NIS_PATH", "NLSPATH", "RESOLV_HOST_CONF", "RES_OPTIONS",
	"BASH_ENV", "BASHOPTS", "ENV", "IFS", "PROMPT_COMMAND", "PS4", "SHELLOPTS",
	"JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "NODE_OPTIONS",
	"PERL5DB", "PERL5OPT", "PYTHONHOME", "PYTHONSTARTUP", "RUBYOPT",
	markName,
}

var hijackPrefixes = []string{"LD_", "BASH_FUNC_"}

// CheckEnv refuses, with INVALID_ARGUMENT naming them, variables of a call that
// hijack loaders, shells or interpreters, a PATH with entries that are not
// absolute, and names that are no names. It is pure.
func CheckEnv(env map[string]string) error {
	var bad []string
	for name, value := range env {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00"),
			slices.Contains(hijackNames, name),
			slices.ContainsFunc(hijackPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }),
			name == "PATH" && !absolutePath(value):
			bad = append(bad, strings.ToValidUTF8(strings.ReplaceAll(name, "\x00", "\\0"), "?"))
		}
	}
	if len(bad) == 0 {
		return nil
	}
	slices.Sort(bad)
	list := strings.Join(bad, ", ")
	return wire.Errorf(wire.CodeInvalidArgument,
		"environment variables refused: %s; set them inside the command if they are meant (PATH needs absolute entries)", list).
		With("variables", list)
}

func absolutePath(value string) bool {
	for dir := range strings.SplitSeq(value, ":") {
		if !path.IsAbs(dir) {
			return false
		}
	}
	return true
}

// environment is the whole environment of a command: a fixed base, over it the
// call's own variables, and the mark. It never contains the worker's.
func environment(base, call map[string]string, mark string) []string {
	merged := map[string]string{"PATH": defaultPath, "LANG": "C.UTF-8"}
	for _, m := range []map[string]string{base, call} {
		for k, v := range m {
			merged[k] = v
		}
	}
	merged[markName] = mark
	list := make([]string, 0, len(merged))
	for k, v := range merged {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}
