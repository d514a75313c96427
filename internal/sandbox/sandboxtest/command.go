package sandboxtest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/sandbox"
	"github.com/weft-fabric/weft/internal/wire"
)

func nonblockingWriter(t *testing.T, d sandbox.Driver) {
	// The program counts what its pipe took, says so on stderr, and exits.
	const program = `
use strict; use Fcntl;
fcntl(STDOUT, F_SETFL, fcntl(STDOUT, F_GETFL, 0) | O_NONBLOCK) or die;
my $took = 0;
for my $i (0..255) { my $n = syswrite(STDOUT, chr($i) x 4096); last unless defined $n; $took += $n; last if $n < 4096; }
print STDERR $took; exit 9;`
	p := Start(t, Box(t, d, "l"), sandbox.Command{Argv: []string{"perl", "-e", program}})
	<-p.Done() // nobody has read: the pipe is full
	r := Finish(t, p, time.Minute)
	var want []byte
	for i := range 256 {
		want = append(want, bytes.Repeat([]byte{byte(i)}, 4096)...)
	}
	if r.Exit.String() != "exited(9)" || len(r.Stdout) == 0 || string(r.Stderr) != itoa(len(r.Stdout)) {
		t.Fatalf("%s, the pipe took %s bytes and %d came", r.Exit, r.Stderr, len(r.Stdout))
	}
	if !bytes.HasPrefix(want, r.Stdout) {
		t.Error("the bytes differ")
	}
}

func longArgument(t *testing.T, d sandbox.Driver) {
	arg := strings.Repeat("0123456789abcdef", 127*1024/16)
	if r := Run(t, Box(t, d, "l"), Sh(`printf %s "$1"`, arg)); string(r.Stdout) != arg {
		t.Errorf("%d of %d bytes arrived, %s: %s", len(r.Stdout), len(arg), r.Exit, r.Stderr)
	}
}

func argvUntouched(t *testing.T, d sandbox.Driver) {
	args := []string{"a b", "it's", "$(id)", "*", "\n", ""}
	r := Run(t, Box(t, d, "l"), sandbox.Command{Argv: append([]string{"perl", "-e", `print "$_\0" for @ARGV`}, args...)})
	if got := strings.Split(string(r.Stdout), "\x00"); !slices.Equal(got[:len(got)-1], args) {
		t.Errorf("got %q", got)
	}
}

func stdinIsTheCommands(t *testing.T, d sandbox.Driver) {
	box := Box(t, d, "l")
	Run(t, box, Sh(`echo 'read line; echo "startup $line"' >profile`))
	for _, c := range []struct{ script, want string }{
		{"cat <<END\none\ntwo\nEND\n", "one\ntwo\n"},
		{". ./profile; cat", "startup x\n"},
	} {
		cmd := Sh(c.script)
		cmd.Stdin = wire.StdinPipe
		p := Start(t, box, cmd)
		// The first may have ended already, it reads no standard input.
		if _, err := sandbox.TryWrite(p.Stdin(), []byte("x\n")); err != nil && !errors.Is(err, syscall.EPIPE) {
			t.Fatal(err)
		}
		p.Stdin().Close()
		if r := Finish(t, p, time.Minute); string(r.Stdout) != c.want || !r.Exit.Success() {
			t.Errorf("%q printed %q, %s: %s", c.script, r.Stdout, r.Exit, r.Stderr)
		}
	}
	if r := Run(t, box, sandbox.Command{Argv: []string{"cat"}}); len(r.Stdout) != 0 || !r.Exit.Success() {
		t.Errorf("cat without stdin: %q, %s", r.Stdout, r.Exit)
	}
}

func cwdAndEnvironment(t *testing.T, d sandbox.Driver) {
	t.Setenv("WORKER_SECRET", "s3cret")
	box := Box(t, d, "l")
	Run(t, box, Sh("mkdir -p sub/dir; ln -s sub/dir link"))
	cmd := Sh(`pwd; pwd -P; env >&2; umask`)
	cmd.Cwd, cmd.Env = "sub/dir", map[string]string{"A": "1"}
	r := Run(t, box, cmd)
	lines := strings.Split(string(r.Stdout), "\n")
	if len(lines) < 3 || !strings.HasSuffix(lines[0], "/sub/dir") || lines[1] != lines[0] {
		t.Fatalf("stdout %q", r.Stdout)
	}
	if d.Capabilities().FixedUmask && lines[2] != "0022" {
		t.Errorf("umask %s", lines[2])
	}
	env := map[string]string{}
	for line := range strings.Lines(string(r.Stderr)) {
		k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		env[k] = v
	}
	root := filepath.Dir(filepath.Dir(lines[0]))
	if env["A"] != "1" || env["HOME"] != root || env["LANG"] != "C.UTF-8" || !strings.HasPrefix(env["PATH"], "/") {
		t.Errorf("environment %v", env)
	}
	for k := range env {
		if !slices.Contains([]string{"A", "HOME", "LANG", "PATH", "PWD", "OLDPWD", "SHLVL", "_", "TMPDIR", "WEFT_SANDBOX"}, k) {
			t.Errorf("foreign variable %s in %v", k, env)
		}
	}
	if fi, err := os.Stat(root); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("mode of the sandbox root: %v %v", fi.Mode(), err)
	}
	cmd = Sh("pwd -P")
	cmd.Cwd = "link"
	if r := Run(t, box, cmd); string(r.Stdout) != lines[0]+"\n" {
		t.Errorf("through a link inside: %q", r.Stdout)
	}
	if r := Run(t, box, Sh(`cd "$TMPDIR" && touch x && ls "$HOME"`)); string(r.Stdout) != "link\nsub\n" {
		t.Errorf("TMPDIR and HOME: %q %q", r.Stdout, r.Stderr)
	}
}

func hijackRefused(t *testing.T, d sandbox.Driver) {
	cmd := Sh("touch spawned")
	cmd.Env = map[string]string{"LD_PRELOAD": "/x.so", "BASH_ENV": "x", "PATH": ".", "FINE": "1"}
	box := Box(t, d, "l")
	_, err := box.Start(t.Context(), cmd)
	if wire.CodeOf(err) != wire.CodeInvalidArgument {
		t.Fatalf("got %v", err)
	}
	for _, name := range []string{"LD_PRELOAD", "BASH_ENV", "PATH"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named: %v", name, err)
		}
	}
	assertNothingSpawned(t, box)
}

func cwdOutside(t *testing.T, d sandbox.Driver) {
	box := Box(t, d, "l")
	Run(t, box, Sh("ln -s /etc out; ln -s ../../.. up; mkdir sub; ln -s /proc/self/fd/9 fd"))
	for _, cwd := range []string{"../../etc", "/etc", "out", "up", "out/../out", "fd", "sub/../..", "/proc/self/fd/9", "a\x00b"} {
		cmd := Sh("touch spawned")
		cmd.Cwd = cwd
		if _, err := box.Start(t.Context(), cmd); wire.CodeOf(err) != wire.CodeInvalidArgument {
			t.Errorf("cwd %q: %v", cwd, err)
		}
	}
	assertNothingSpawned(t, box)
}

func assertNothingSpawned(t *testing.T, box sandbox.Sandbox) {
	t.Helper()
	if r := Run(t, box, Sh("ls spawned")); r.Exit.Success() {
		t.Error("a refused command ran")
	}
}

func descriptors(t *testing.T, d sandbox.Driver) {
	// One without close-on-exec, as a parent of the worker may leave behind.
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	leak := leakable(t, null)
	defer leak.Close()
	cmd := Sh(`i=0; while [ $i -lt 256 ]; do [ -e /proc/$$/fd/$i ] && echo $i; i=$((i+1)); done`)
	for _, kind := range []wire.StdinKind{wire.StdinNone, wire.StdinPipe} {
		cmd.Stdin = kind
		if r := Run(t, Box(t, d, "l"), cmd); string(r.Stdout) != "0\n1\n2\n" {
			t.Errorf("stdin %s: descriptors %q", kind, r.Stdout)
		}
	}
}

func nothingForTheNext(t *testing.T, d sandbox.Driver) {
	first := Box(t, d, "a")
	p := Start(t, first, Sh(`touch $TMPDIR/f $HOME/f; setsid sleep 1000 >/dev/null 2>&1 & echo $!`))
	pid := Line(t, p.Stdout())
	if err := first.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := Run(t, Box(t, d, "b"), Sh(`find "$TMPDIR" "$HOME" -type f; kill -0 $1 2>/dev/null && grep -q sleep /proc/$1/cmdline && echo alive; :`, pid))
	if strings.TrimSpace(string(r.Stdout)) != "" {
		t.Errorf("the next lease finds %q", r.Stdout)
	}
}
