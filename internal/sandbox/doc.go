// Package sandbox makes sandboxes and runs commands in them. It knows nothing
// of NATS, leases' deadlines or credit: the worker decides when, this package
// knows how. Linux 5.14 or later is assumed where cgroups are used, 5.10
// otherwise (pidfds that can be polled).
//
// # What is authoritative
//
// A [Driver] owns its sandboxes, a [Sandbox] its processes, a [Process] its
// tree: the command and everything it started, also what called setsid or
// forked twice. How a tree is found is detected when the driver is made and
// said in [Capabilities].TreeKill:
//
//   - cgroup: a cgroup v2 directory per command, entered by clone itself, ended
//     by cgroup.kill. Nothing that cannot write to the hierarchy escapes.
//   - environ-scan: the mark WEFT_SANDBOX in /proc/*/environ, the command's
//     process group and session, and descent from those. Best effort: a process
//     that clears its environment, leaves the session and loses its parent is
//     not found.
//
// # The life of a command
//
//	Start ──> running ──> Done ──(drain)──> tree killed ──> EOF ──> Close
//	             │                              ^
//	             └── Stop: TERM, grace, KILL ───┘
//
// "The process is gone" ([Process.Done]) and "its streams have ended" (EOF on
// Stdout and Stderr) are two facts that come in either order. The worker's
// readers own reading and credit; this package owns processes and time:
//
//	p, err := box.Start(ctx, cmd)
//	drain := sandbox.NewDrain(sandbox.DefaultDrainBound)
//	// one goroutine for each output stream:
//	//   no credit: drain.Block(); wait for credit; drain.Unblock()
//	//   buf, n, err := sandbox.ReadReady(p.Stdout(), pool.get)
//	//   io.EOF or os.ErrDeadlineExceeded: this stream has ended
//	// streamsEnded is closed when both have ended
//	held, err := p.End(ctx, drain, streamsEnded)
//	<-streamsEnded
//	outcome := p.Exit() // with Drain set when held
//	err = p.Close(ctx)
//
// [Process.End] waits for Done, gives descendants that hold the pipes the drain
// bound, counted only while no reader is blocked by lack of credit, kills the
// tree, and then sets a read deadline in the past. Such a deadline does not
// make [ReadReady] fail, it makes it stop waiting: what is in the pipe is still
// read to the end, and a stream whose pipe was handed to a process outside the
// tree ends instead of hanging. A stop or a deadline is [Process.Stop] from
// another goroutine, after which End goes on by itself.
//
// A process that is gone stays a zombie until Close or Destroy has killed its
// tree. Its pid and process group can therefore not be given to anybody else
// while signals may still be sent to them.
//
// The process and inline drivers separate tenants' files and processes by
// directory and by tree. They are no security boundary: commands run as the
// worker's user and see its file system.
package sandbox
