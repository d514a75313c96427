package registry

import (
	"maps"
	"slices"

	"github.com/weft-fabric/weft/internal/wire"
)

// Bounds of a description.
const (
	MaxKey         = 128 // bytes of the name of a plugin, provider, driver, capability or label
	MaxLabels      = 64
	MaxLabelValue  = 256       // bytes
	MaxDescription = 32 << 10  // bytes as JSON, without the inventory
	MaxSlots       = 1_000_000 // of one worker
	maxItems       = 64        // providers, verbs, capabilities of one provider
)

// CheckKey returns INVALID_ARGUMENT, naming what, unless s is 1 to 128 letters,
// digits and ._/@:- with a letter or digit at the end, and one or @ at the beginning.
func CheckKey(what, s string) error {
	if s == "" || len(s) > MaxKey {
		return invalid("%s is empty or longer than %d bytes", what, MaxKey)
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		inner := i > 0 && i < len(s)-1 && (c == '.' || c == '_' || c == '/' || c == ':' || c == '-' || c == '@')
		if !alnum && !inner && (c != '@' || i > 0 || len(s) == 1) {
			return invalid("%s has a byte that its place does not allow at position %d; want letters, digits and, inside, one of ._/@:-", what, i)
		}
	}
	return nil
}

// CheckLabels returns INVALID_ARGUMENT, naming the label, unless there are at
// most 64, each with a key as CheckKey wants it and an empty value or one that
// wire.CheckName takes.
func CheckLabels(labels map[string]string) error {
	if len(labels) > MaxLabels {
		return invalid("labels has %d entries; at most %d are taken", len(labels), MaxLabels)
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if err := CheckKey("label "+quote(k), k); err != nil {
			return err
		}
		if v := labels[k]; v != "" {
			if err := wire.CheckName("the value of label "+quote(k), v, MaxLabelValue); err != nil {
				return err
			}
		}
	}
	return nil
}

// Check returns INVALID_ARGUMENT, naming the field, unless the query is well formed.
func (q Query) Check() error {
	if q.Plugin != "" {
		if err := CheckKey("plugin", q.Plugin); err != nil {
			return err
		}
	}
	if q.Provider != "" {
		if err := CheckKey("provider", q.Provider); err != nil {
			return err
		}
	}
	return CheckLabels(q.Labels)
}

func checkDescription(r wire.RegisterRequest) error {
	if err := wire.CheckToken("route", r.Route); err != nil {
		return err
	}
	if err := CheckKey("pluginId", r.PluginID); err != nil {
		return err
	}
	for _, f := range []struct{ name, value string }{{"version", r.Version}, {"hostBootId", r.HostBootID}} {
		if f.value == "" {
			continue
		}
		if err := wire.CheckName(f.name, f.value, MaxKey); err != nil {
			return err
		}
	}
	if r.Slots < 1 || r.Slots > MaxSlots {
		return invalid("slots is %d; want 1 to %d", r.Slots, MaxSlots)
	}
	if err := checkKeys("verbs", r.Verbs); err != nil {
		return err
	}
	if err := CheckLabels(r.Labels); err != nil {
		return err
	}
	if err := checkProviders(r.Providers); err != nil {
		return err
	}
	r.Inventory = wire.Inventory{}
	if n := len(wire.Encode(r)); n > MaxDescription {
		return invalid("the description is %d bytes without its inventory; at most %d are taken", n, MaxDescription)
	}
	return nil
}

func checkProviders(ps []wire.Provider) error {
	if len(ps) == 0 || len(ps) > maxItems {
		return invalid("providers has %d entries; want 1 to %d", len(ps), maxItems)
	}
	seen := map[string]bool{}
	for _, p := range ps {
		if err := CheckKey("a provider's name", p.Name); err != nil {
			return err
		}
		if err := CheckKey("a provider's driver", p.Driver); err != nil {
			return err
		}
		if seen[p.Name] {
			return invalid("provider %s is there twice", p.Name)
		}
		seen[p.Name] = true
		for _, f := range []struct{ name, value string }{{"isolation", p.Isolation}, {"treeKill", p.TreeKill}} {
			if f.value == "" {
				continue
			}
			if err := wire.CheckName(f.name+" of provider "+p.Name, f.value, MaxKey); err != nil {
				return err
			}
		}
		if err := checkKeys("capabilities of provider "+p.Name, p.Capabilities); err != nil {
			return err
		}
	}
	return nil
}

func checkKeys[S ~string](what string, items []S) error {
	if len(items) > maxItems {
		return invalid("%s has %d entries; at most %d are taken", what, len(items), maxItems)
	}
	for _, s := range items {
		if err := CheckKey("an entry of "+what, string(s)); err != nil {
			return err
		}
	}
	return nil
}
