package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/internal/coordinator"
	"github.com/weft-fabric/weft/internal/wire"
)

func (a *app) version() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of weft and of its protocol",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if o == asJSON {
				return writeJSON(a.sys.Stdout, struct {
					Version  string `json:"version"`
					Protocol int    `json:"protocolVersion"`
					Go       string `json:"go"`
				}{coordinator.Version, wire.Version, runtime.Version()})
			}
			_, err := fmt.Fprintf(a.sys.Stdout, "weft %s, protocol %d, %s\n", coordinator.Version, wire.Version, runtime.Version())
			return err
		},
	}
	o.bind(cmd.Flags())
	return cmd
}
