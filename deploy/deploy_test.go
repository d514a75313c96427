package deploy_test

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/deploy"
)

// The embedded server replaces exactly these; one more would come from the
// environment of whoever starts it.
func TestVariablesOfTheFile(t *testing.T) {
	onDisk, err := os.ReadFile("nats.conf")
	if err != nil || string(onDisk) != deploy.NATSConf {
		t.Fatalf("the compiled-in file is not nats.conf (%v)", err)
	}
	code := regexp.MustCompile(`(?m)#.*$`).ReplaceAllString(deploy.NATSConf, "")
	got := regexp.MustCompile(`\$\w+`).FindAllString(code, -1)
	slices.Sort(got)
	if want := []string{"$WEFT_LISTEN", "$WEFT_STORE", "$WEFT_TOKEN"}; !slices.Equal(got, want) {
		t.Fatalf("variables %v, want %v", got, want)
	}
}
