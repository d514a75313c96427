// Command ratio measures weft against raw core NATS and a bare fork and exec, in
// one run on one machine, and prints ratios:
//
//	echo_ratio     round trip of a 64-byte write through cat, p50, over the same
//	               through raw core NATS subjects on the same server
//	bulk_ratio     throughput of a command that writes, over the same raw
//	open_extra_ms  open to first byte, minus a bare fork and exec to first byte, p50
//
// Rounds of the two sides alternate, so that a machine that slows down slows
// both. The ratios of the rounds' pairs are reported by their median.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/fabric"
)

type config struct {
	JSON   bool `json:"-"`
	only   string
	TCP    bool `json:"tcp"`
	Rounds int  `json:"rounds"`
	Echoes int  `json:"echoes"`  // round trips of one round
	BulkMB int  `json:"bulk_mb"` // megabytes (1e6) of one round
	Opens  int  `json:"opens"`   // opens of one round
}

// report is what -json prints: the three figures and every figure behind them.
type report struct {
	EchoRatio   float64 `json:"echo_ratio"`
	BulkRatio   float64 `json:"bulk_ratio"`
	OpenExtraMS float64 `json:"open_extra_ms"`
	Config      config  `json:"config"`
	Echo        []pair  `json:"echo_us_p50"` // microseconds
	EchoP99     []pair  `json:"echo_us_p99"`
	Bulk        []pair  `json:"bulk_mb_per_s"`
	CatBulk     []pair  `json:"cat_bulk_mb_per_s"` // both directions through cat
	Open        []pair  `json:"open_ms_p50"`
}

// pair is one round: weft, and what it is measured against.
type pair struct {
	Weft float64 `json:"weft"`
	Base float64 `json:"base"`
}

func main() {
	var c config
	flag.BoolVar(&c.JSON, "json", false, "print one JSON object")
	flag.BoolVar(&c.TCP, "tcp", true, "connect over loopback TCP; false: in process")
	flag.IntVar(&c.Rounds, "rounds", 5, "rounds of each side")
	flag.IntVar(&c.Echoes, "echoes", 2000, "round trips in a round")
	flag.IntVar(&c.BulkMB, "bulk-mb", 128, "megabytes in a round")
	flag.IntVar(&c.Opens, "opens", 100, "opens in a round")
	cpu := flag.String("cpuprofile", "", "write a CPU profile of the run to this file")
	only := flag.String("only", "", "measure only echo, bulk, cat or open; no ratios of the others")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c.only = *only
	end, err := profile(*cpu)
	var r *report
	if err == nil {
		r, err = measure(ctx, c)
		end()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ratio:", err)
		stop()
		os.Exit(1)
	}
	if c.JSON {
		_ = json.NewEncoder(os.Stdout).Encode(r)
		return
	}
	r.print()
}

func measure(ctx context.Context, c config) (*report, error) {
	o := fabric.Options{Log: zerolog.Nop()}
	if c.TCP {
		o.Listen = "127.0.0.1:0"
	}
	stack, err := fabric.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stack.Stop() }()
	raw, err := newRaw(stack, c.TCP)
	if err != nil {
		return nil, err
	}
	defer raw.close()
	co := client.Options{Auth: client.Auth{Token: stack.Token()}}
	if c.TCP {
		co.URL = stack.URL()
	} else {
		co.InProcess = stack.InProcess()
	}
	cl, err := client.Connect(ctx, co)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	lease, err := cl.AcquireLease(ctx, client.AcquireOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = lease.Release(context.WithoutCancel(ctx)) }()

	r := &report{Config: c}
	for range c.Rounds {
		if err := r.round(ctx, c, lease, raw); err != nil {
			return nil, err
		}
	}
	r.EchoRatio = median(r.Echo, func(p pair) float64 { return p.Weft / p.Base })
	r.BulkRatio = median(r.Bulk, func(p pair) float64 { return p.Weft / p.Base })
	r.OpenExtraMS = median(r.Open, func(p pair) float64 { return p.Weft - p.Base })
	return r, nil
}

// round measures each figure once on both sides.
func (r *report) round(ctx context.Context, c config, lease *client.Lease, raw *raw) error {
	n := int64(c.BulkMB) * 1e6
	for _, m := range []struct {
		name string
		run  func() error
	}{
		{"echo", func() error {
			return both(&r.Echo, &r.EchoP99, time.Microsecond,
				func() ([]time.Duration, error) { return echoWeft(ctx, lease, c.Echoes) },
				func() ([]time.Duration, error) { return raw.echo(ctx, c.Echoes) })
		}},
		{"bulk", func() error {
			return rates(&r.Bulk, n,
				func() (time.Duration, error) { return bulkWeft(ctx, lease, n) },
				func() (time.Duration, error) { return raw.bulk(ctx, n) })
		}},
		{"cat", func() error {
			return rates(&r.CatBulk, n,
				func() (time.Duration, error) { return catWeft(ctx, lease, n) },
				func() (time.Duration, error) { return raw.cat(ctx, n) })
		}},
		{"open", func() error {
			return both(&r.Open, nil, time.Millisecond,
				func() ([]time.Duration, error) { return openWeft(ctx, lease, c.Opens) },
				func() ([]time.Duration, error) { return forkExec(ctx, c.Opens) })
		}},
	} {
		if c.only != "" && c.only != m.name {
			continue
		}
		if err := m.run(); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return nil
}

// both measures durations on both sides and keeps their p50 and, if wanted, p99.
func both(p50, p99 *[]pair, unit time.Duration, weft, base func() ([]time.Duration, error)) error {
	w, err := weft()
	if err != nil {
		return fmt.Errorf("weft: %w", err)
	}
	b, err := base()
	if err != nil {
		return fmt.Errorf("base: %w", err)
	}
	*p50 = append(*p50, pair{quantile(w, 0.5, unit), quantile(b, 0.5, unit)})
	if p99 != nil {
		*p99 = append(*p99, pair{quantile(w, 0.99, unit), quantile(b, 0.99, unit)})
	}
	return nil
}

// rates measures throughput on both sides.
func rates(out *[]pair, n int64, weft, base func() (time.Duration, error)) error {
	w, err := weft()
	if err != nil {
		return fmt.Errorf("weft: %w", err)
	}
	b, err := base()
	if err != nil {
		return fmt.Errorf("base: %w", err)
	}
	*out = append(*out, pair{rate(n, w), rate(n, b)})
	return nil
}

func (r *report) print() {
	fmt.Printf("%-34s %10s %10s %8s\n", "median of rounds", "weft", "base", "ratio")
	row := func(name string, ps []pair) {
		if len(ps) == 0 {
			return
		}
		ratio := median(ps, func(p pair) float64 { return p.Weft / p.Base })
		fmt.Printf("%-34s %10.2f %10.2f %8.3f\n", name, median(ps, func(p pair) float64 { return p.Weft }), median(ps, func(p pair) float64 { return p.Base }), ratio)
	}
	row("echo p50, µs (raw core NATS)", r.Echo)
	row("echo p99, µs", r.EchoP99)
	row("bulk, MB/s (raw core NATS)", r.Bulk)
	row("bulk through cat, MB/s", r.CatBulk)
	row("open to first byte, ms (fork+exec)", r.Open)
	fmt.Printf("\necho_ratio %.3f   bulk_ratio %.3f   open_extra_ms %.3f\n", r.EchoRatio, r.BulkRatio, r.OpenExtraMS)
}

func rate(n int64, d time.Duration) float64 { return float64(n) / 1e6 / d.Seconds() }

func median(ps []pair, f func(pair) float64) float64 {
	if len(ps) == 0 {
		return 0
	}
	v := make([]float64, len(ps))
	for i, p := range ps {
		v[i] = f(p)
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func quantile(d []time.Duration, q float64, unit time.Duration) float64 {
	slices.Sort(d)
	return float64(d[min(len(d)-1, int(q*float64(len(d))))]) / float64(unit)
}
