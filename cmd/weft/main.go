// Command weft runs commands in leased sandboxes and streams them.
package main

import (
	"os"

	"github.com/weft-fabric/weft/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], cli.OS())) }
