package wire

import (
	"flag"
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

var update = flag.Bool("update", false, "write the golden JSON bodies; a changed one breaks the wire")

// bodies are the types that stand as a whole JSON body, each with a constructor.
func bodies() map[string]any {
	out := map[string]any{}
	for _, v := range []any{
		&AcquireRequest{}, &LeaseRequest{}, &LeaseReply{}, &ListRequest{}, &LeaseList{},
		&OpenRequest{}, &OpenReply{}, &ChannelRequest{}, &ChannelReply{}, &ChannelList{}, &Info{},
		&RegisterRequest{}, &RegisterReply{}, &Beat{}, &RenewRequest{}, &RenewReply{},
		&EndedRequest{}, &EndedReply{}, &Order{}, &BindOrder{}, &BindReply{}, &ReleaseOrder{}, &ReleaseReply{},
		&OpenOrder{}, &OpenedReply{}, &CloseOrder{}, &ProbeOrder{}, &ProbeReply{}, &WorkerList{},
		&AttachRequest{}, &AttachReply{}, &AttachOrder{}, &AttachedReply{}, &ReplayRequest{},
		&Exec{}, &Request{}, &Answer{}, &Exit{}, &Error{},
	} {
		out[reflect.TypeOf(v).Elem().Name()] = v
	}
	return out
}

// fill sets every field that can be reached to a value that shows where it
// stands: a string to its field's name, a number to a count.
func fill(v reflect.Value, name string, n *int64) {
	switch v.Type() {
	case reflect.TypeFor[uuid.UUID]():
		v.Set(reflect.ValueOf(goldenChannel()))
		return
	case reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 678000000, time.UTC)))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(name)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		*n++
		v.SetInt(*n)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		*n++
		v.SetUint(uint64(*n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), name, n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), name, n)
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), name, n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		item := reflect.New(v.Type().Elem()).Elem()
		fill(item, name+"Value", n)
		v.SetMapIndex(reflect.ValueOf(name+"Key").Convert(v.Type().Key()), item)
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			fill(v.Field(i), tag, n)
		}
	default:
		panic("no sample for " + v.Type().String())
	}
}

func TestGoldenBodies(t *testing.T) {
	for name, v := range bodies() {
		var n int64
		fill(reflect.ValueOf(v).Elem(), name, &n)
		path := filepath.Join("testdata", "golden", name+".json")
		got := append(Encode(v), '\n')
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s differs from its golden file:\ngot  %s\nwant %s", name, got, want)
		}
		back := reflect.New(reflect.TypeOf(v).Elem()).Interface()
		if err := DecodeStrict(want, MaxOpenBody, back); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff(v, back); d != "" {
			t.Errorf("%s does not come back:\n%s", name, d)
		}
	}
}

// TestEveryBodyIsPinned finds structs with JSON fields that no golden file shows.
func TestEveryBodyIsPinned(t *testing.T) {
	shown := map[string]bool{}
	var walk func(reflect.Type)
	walk = func(rt reflect.Type) {
		switch rt.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			walk(rt.Elem())
		case reflect.Struct:
			shown[rt.Name()] = true
			for i := range rt.NumField() {
				walk(rt.Field(i).Type)
			}
		}
	}
	for _, v := range bodies() {
		walk(reflect.TypeOf(v))
	}
	types := jsonTypes(t)
	if len(types) < 40 {
		t.Fatalf("found only %d types; the search is broken", len(types))
	}
	for _, name := range types {
		if !shown[name] {
			t.Errorf("type %s has JSON fields and is in no golden file", name)
		}
	}
}

// jsonTypes lists the structs of this package's source that have JSON tags.
func jsonTypes(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{}
	for _, f := range parsePackage(t) {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			st, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			for _, field := range st.Fields.List {
				if field.Tag != nil && strings.Contains(field.Tag.Value, "json:") {
					found[spec.Name.Name] = true
				}
			}
			return true
		})
	}
	return slices.Sorted(maps.Keys(found))
}

func TestBeatFitsItsLimit(t *testing.T) {
	b := Beat{
		Instance: uuid.NewString(), Seq: 1<<53 - 1, State: WorkerDraining, SlotsUsed: 1_000_000,
		Inventory: strings.Repeat("f", 32), Description: strings.Repeat("f", 32),
	}
	if n := len(Encode(b)); n > MaxBeat {
		t.Errorf("a beat is %d bytes; at most %d are taken", n, MaxBeat)
	}
}

func TestSignedBytes(t *testing.T) {
	if got, want := string(SignedBytes("open", []byte(`{"a":1}`))), "weft/v1 open\x00{\"a\":1}"; got != want {
		t.Errorf("an open is signed over %q; want %q", got, want)
	}
}

func TestDecodeReplyIsLenient(t *testing.T) {
	var e EndedReply
	if err := DecodeReply([]byte(`{"outcome":{"kind":"exited","code":3},"newer":1}`), &e); err != nil || e.Outcome.String() != "exited(3)" {
		t.Errorf("a reply with a newer field: %v, %v", e, err)
	}
	if err := DecodeReply([]byte("secret text"), &e); CodeOf(err) != CodeInternal || strings.Contains(err.Error(), "secret") {
		t.Errorf("a reply that is no JSON: %v", err)
	}
}
