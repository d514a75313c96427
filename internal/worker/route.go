package worker

import (
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	routeFile = "route"
	routeLen  = 26 // 128 bits in base32
)

// loadRoute returns the worker's random token in subjects that tenants see. It
// is made at the first start in dir and kept there.
func loadRoute(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	path := filepath.Join(dir, routeFile)
	route, err := readRoute(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return route, err
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand, Go 1.24)
	route = strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
	tmp, err := os.CreateTemp(dir, routeFile+".*.tmp") // mode 0600
	if err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(route + "\n")
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return "", fmt.Errorf("route file: %w", err)
	}
	// A link, not a rename: of two first starts the later takes the earlier's.
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("route file: %w", err)
	}
	return readRoute(path)
}

func readRoute(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("route file: %w", err)
	}
	route := strings.TrimSuffix(string(b), "\n")
	if len(route) != routeLen || strings.Trim(route, "abcdefghijklmnopqrstuvwxyz234567") != "" {
		return "", fmt.Errorf("route file %s is damaged: it does not hold %d characters of lower-case base32; "+
			"restore it, or remove it to get a new route", path, routeLen)
	}
	return route, nil
}
