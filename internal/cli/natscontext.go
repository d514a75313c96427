package cli

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/weft-fabric/weft/client"
)

// maxContext bounds a context file in bytes.
const maxContext = 64 << 10

// natsDir is where the nats command keeps its contexts; "" without a home.
func (a *app) natsDir() string {
	if dir := a.env("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "nats")
	}
	if home := a.env("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".config", "nats")
	}
	return ""
}

// selectedContext is the context that nats context select has chosen, or "".
func (a *app) selectedContext() (string, error) {
	dir := a.natsDir()
	if dir == "" {
		return "", nil
	}
	b, err := readBounded(filepath.Join(dir, "context.txt"))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", refused("the selected nats context cannot be read: %v", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// natsContext reads the file of one context. What weft does not know in it is
// left alone.
func (a *app) natsContext(name string, f connFlags) (*target, error) {
	dir := a.natsDir()
	if dir == "" || name != filepath.Base(name) || name == "." || name == ".." {
		return nil, refused("there is no nats context %q; nats context ls lists them", name)
	}
	b, err := readBounded(filepath.Join(dir, "context", name+".json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, refused("there is no nats context %q; nats context ls lists them", name)
	}
	var c struct {
		URL, Token, User, Password, Creds, NKey, CA, Cert, Key string
	}
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		return nil, refused("the nats context %q cannot be used: %v", name, err)
	}
	if c.URL == "" {
		c.URL = "nats://127.0.0.1:4222" // the nats command's own default
	}
	if f.creds != "" {
		c.Creds = f.creds
	}
	t := &target{
		url: c.URL,
		auth: client.Auth{
			Token: c.Token, User: c.User, Password: c.Password, CredsFile: c.Creds, NKeyFile: c.NKey,
		},
		tls: client.TLS{CA: c.CA, Cert: c.Cert, Key: c.Key},
	}
	return t, a.ownToken(t)
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxContext+1))
	if err == nil && len(b) > maxContext {
		err = errors.New("it is larger than 64 KiB")
	}
	return b, err
}
