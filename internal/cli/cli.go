package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/internal/runfile"
	"github.com/weft-fabric/weft/internal/wire"
)

// System is what the command has of the process around it.
type System struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	LookupEnv      func(string) (string, bool)
	RuntimeDir     string // of the state files; see internal/runfile
	// Notify delivers the given signals to the channel until stop is called.
	Notify func(c chan<- os.Signal, s ...os.Signal) (stop func())
}

// OS is the System of this process.
func OS() System {
	return System{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		LookupEnv: os.LookupEnv, RuntimeDir: runfile.DefaultDir(),
		Notify: func(c chan<- os.Signal, s ...os.Signal) func() {
			signal.Notify(c, s...)
			return func() { signal.Stop(c) }
		},
	}
}

// Main runs the command line args (without the program's name) and returns the
// exit status. It reports errors itself.
func Main(args []string, sys System) int {
	cmd := New(sys)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*exit](err); ok {
		if e.err != nil {
			report(sys.Stderr, e.err)
		}
		return e.code
	}
	report(sys.Stderr, err)
	return wire.ExitRefused
}

// exit is an error that knows the exit status; err may be nil.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return "exit"
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// app is what the commands share.
type app struct {
	sys      System
	logLevel string
}

// New makes the weft command. Its RunE errors are for Main.
func New(sys System) *cobra.Command {
	a := &app{sys: sys}
	root := &cobra.Command{
		Use:   "weft",
		Short: "Run commands in leased sandboxes and stream them",
		Long: `Run commands in leased sandboxes and stream them.

With no server configured, weft run brings up everything it needs in its own
process. weft up does so for other terminals.`,
		Example: `  printf 'hello weft\n' | weft run -- tr a-z A-Z
  weft up
  weft lease acquire -o json`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetIn(sys.Stdin)
	root.SetOut(sys.Stdout)
	root.SetErr(sys.Stderr)
	root.PersistentFlags().StringVar(&a.logLevel, "log-level", "", "what weft logs on standard error: debug, info, warn, error (default: nothing; up: info)")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(a.run(), a.up(), a.exec(), a.open(), a.attach(), a.channel(), a.lease(), a.worker(), a.version())
	return root
}

// logger is the root logger; level holds when --log-level is not given.
func (a *app) logger(level zerolog.Level) (zerolog.Logger, error) {
	if a.logLevel != "" {
		l, err := zerolog.ParseLevel(a.logLevel)
		if err != nil || l == zerolog.NoLevel {
			return zerolog.Nop(), wire.Errorf(wire.CodeInvalidArgument, "--log-level is none of debug, info, warn, error")
		}
		level = l
	}
	if level == zerolog.Disabled {
		return zerolog.Nop(), nil
	}
	w := zerolog.ConsoleWriter{Out: a.sys.Stderr, NoColor: true, TimeFormat: time.TimeOnly}
	return zerolog.New(w).Level(level).With().Timestamp().Logger(), nil
}
