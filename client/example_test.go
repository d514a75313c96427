package client_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/weft-fabric/weft/client"
	"github.com/weft-fabric/weft/internal/fabric"
)

// local starts a fabric in this process and connects to it. A program that uses
// a fabric elsewhere calls client.Connect with its URL.
func local(ctx context.Context) (c *client.Client, stop func()) {
	s, err := fabric.Start(ctx, fabric.Options{})
	if err != nil {
		log.Fatal(err)
	}
	c, err = client.Connect(ctx, client.Options{InProcess: s.InProcess()})
	if err != nil {
		log.Fatal(err)
	}
	return c, func() {
		c.Close()
		if err := s.Stop(); err != nil {
			log.Print(err)
		}
	}
}

func ExampleLease_Open() {
	ctx := context.Background()
	c, stop := local(ctx)
	defer stop()

	lease, err := c.AcquireLease(ctx, client.AcquireOptions{Environment: "example"})
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)

	ch, err := lease.Open(ctx, client.Command{Argv: []string{"tr", "a-z", "A-Z"}, Stdin: client.StdinPipe})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprintln(ch, "hello weft")
	ch.CloseWrite()
	out, err := io.ReadAll(ch)
	if err != nil {
		log.Fatal(err)
	}
	outcome, err := ch.Wait()
	fmt.Printf("%s%v %v\n", out, outcome, err)
	// Output:
	// HELLO WEFT
	// exited(0) <nil>
}

// The library moves the bytes of all three streams.
func ExampleWithStdout() {
	ctx := context.Background()
	c, stop := local(ctx)
	defer stop()

	lease, err := c.AcquireLease(ctx, client.AcquireOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)

	var problems strings.Builder
	ch, err := lease.Open(ctx, client.Command{Argv: []string{"sh", "-c", "sort; echo sorted >&2; exit 7"}},
		client.WithStdin(strings.NewReader("b\na\n")),
		client.WithStdout(os.Stdout), client.WithStderr(&problems))
	if err != nil {
		log.Fatal(err)
	}
	outcome, err := ch.Wait()
	fmt.Printf("%s%v %v\n", problems.String(), outcome, err)
	// Output:
	// a
	// b
	// sorted
	// exited(7) <nil>
}

func ExampleLease_Execute() {
	ctx := context.Background()
	c, stop := local(ctx)
	defer stop()

	lease, err := c.AcquireLease(ctx, client.AcquireOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)

	res, err := lease.Execute(ctx, client.Command{Argv: []string{"wc", "-c"}},
		client.WithStdin(strings.NewReader("hello")))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.TrimSpace(res.Stdout.String()), res.Success())
	// Output: 5 true
}
