package subjects

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const (
	lease   = "5c6b7a80-1f2e-4d3c-8b4a-596877869504"
	channel = "7d444840-9dc0-41d1-b245-5ffdce74fad2"
	client  = "0b8f5a3e-2c1d-4e6f-8a9b-0c1d2e3f4a5b"
	route   = "abcdefghijklmnopqrstuvwx27"
)

func ch() Channel { return Channel{Tenant: "acme", Route: route, Lease: lease, Channel: channel} }

type named struct{ name, got, want string }

// list is every subject of weft with its literal spelling.
func list() []named {
	const tail = route + "." + lease + "." + channel
	return []named{
		{"Data up", ch().Data(Up), "weft.v1.ch.acme.7d." + tail + ".up"},
		{"Data down", ch().Data(Down), "weft.v1.ch.acme.7d." + tail + ".down"},
		{"Live up", ch().Live(Up), "weft.v1.lv.acme.7d." + tail + ".up"},
		{"Live down", ch().Live(Down), "weft.v1.lv.acme.7d." + tail + ".down"},
		{"Control up", ch().Control(Up), "weft.v1.ct.acme." + tail + ".up"},
		{"Control down", ch().Control(Down), "weft.v1.ct.acme." + tail + ".down"},
		{"KeepaliveUp", KeepaliveUp("acme", route, client), "weft.v1.ct.acme." + route + ".keepalive." + client + ".up"},
		{"WorkerLive", WorkerLive(route), "weft.v1.lv.*.*." + route + ".*.*.up"},
		{"WorkerControl", WorkerControl(route), "weft.v1.ct.*." + route + ".*.*.up"},
		{"Log", Log("acme"), "weft.v1.ch.acme.>"},
		{"LogRepublish", LogRepublish("acme"), "weft.v1.lv.acme.>"},
		{"LogStream", LogStream("acme", 0), "WEFT_CH_acme_0"},
		{"Heartbeat", Heartbeat("w1"), "weft.v1.hb.w1"},
		{"Heartbeats", Heartbeats(), "weft.v1.hb.*"},
		{"ToCoordinator", ToCoordinator("w1", WRRegister), "weft.v1.wr.w1.register"},
		{"ToCoordinators", ToCoordinators(WREnded), "weft.v1.wr.*.ended"},
		{"ToWorker", ToWorker("w1", WKOpen), "weft.v1.wk.w1.open"},
		{"Orders", Orders("w1"), "weft.v1.wk.w1.*"},
		{"API", API("acme", APIOpen), "weft.v1.api.acme.open"},
		{"APIs", APIs(APIAcquire), "weft.v1.api.*.acquire"},
		{"Replay", Replay("acme"), "weft.v1.rp.acme.replay"},
		{"Operator", Operator(OpWorkers), "weft.v1.op.workers"},
		{"Event", Event("acme", "lease.granted"), "weft.v1.ev.acme.lease.granted"},
	}
}

func TestSubjectsAreSpelt(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range list() {
		t.Logf("%-15s %s", s.name, s.got)
		if s.got != s.want {
			t.Errorf("%s is %q; want %q", s.name, s.got, s.want)
		}
		first, _, _ := strings.Cut(s.name, " ")
		seen[first] = true
	}
	for _, name := range makers(t) {
		if !seen[name] {
			t.Errorf("%s makes a subject and is not in the list", name)
		}
	}
}

// makers lists the exported functions and methods of this package that return
// a single string.
func makers(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, name := range []string{"subjects.go", "parse.go"} {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !fn.Name.IsExported() || fn.Type.Results == nil || len(fn.Type.Results.List) != 1 {
				continue
			}
			if id, ok := fn.Type.Results.List[0].Type.(*ast.Ident); ok && id.Name == "string" && fn.Name.Name != "String" && fn.Name.Name != "Shard" {
				out = append(out, fn.Name.Name)
			}
		}
	}
	if len(out) < 15 {
		t.Fatalf("found only %v; the search is broken", out)
	}
	return out
}

func TestVerbsArePinned(t *testing.T) {
	for _, c := range []struct {
		kind, want string
		got        []string
	}{
		{"api", "acquire get list renew release open execute attach observe channel channels kill info",
			[]string{APIAcquire, APIGet, APIList, APIRenew, APIRelease, APIOpen, APIExecute, APIAttach, APIObserve, APIChannel, APIChannels, APIKill, APIInfo}},
		{"wr", "register renew ended inventory replay", []string{WRRegister, WRRenew, WREnded, WRInventory, WRReplay}},
		{"wk", "bind release open close attach probe inventory drain",
			[]string{WKBind, WKRelease, WKOpen, WKClose, WKAttach, WKProbe, WKInventory, WKDrain}},
		{"op", "workers leases channels cordon uncordon drain kill incarnation",
			[]string{OpWorkers, OpLeases, OpChannels, OpCordon, OpUncordon, OpDrain, OpKill, OpIncarnation}},
	} {
		if got := strings.Join(c.got, " "); got != c.want {
			t.Errorf("%s verbs are %q; want %q", c.kind, got, c.want)
		}
	}
}

func TestParse(t *testing.T) {
	keepalive := Channel{Tenant: "acme", Route: route, Lease: Keepalive, Channel: client}
	for s, want := range map[string]Subject{
		ch().Data(Up):                         {Kind: KindData, Channel: ch(), Dir: Up},
		ch().Live(Down):                       {Kind: KindLive, Channel: ch(), Dir: Down},
		ch().Control(Up):                      {Kind: KindControl, Channel: ch(), Dir: Up},
		KeepaliveUp("acme", route, client):    {Kind: KindControl, Channel: keepalive, Dir: Up},
		Heartbeat("w1"):                       {Kind: KindHeartbeat, Worker: "w1"},
		ToCoordinator("w1", WRRenew):          {Kind: KindToCoord, Worker: "w1", Verb: "renew"},
		ToWorker("w1", WKProbe):               {Kind: KindToWorker, Worker: "w1", Verb: "probe"},
		API("acme", APIList):                  {Kind: KindAPI, Tenant: "acme", Verb: "list"},
		Replay("acme"):                        {Kind: KindReplay, Tenant: "acme", Verb: "replay"},
		Operator(OpDrain):                     {Kind: KindOperator, Verb: "drain"},
		API(strings.Repeat("a", 63), APIList): {Kind: KindAPI, Tenant: strings.Repeat("a", 63), Verb: "list"},
	} {
		got, err := Parse(s)
		if err != nil || got != want {
			t.Errorf("%s is %+v, %v; want %+v", s, got, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	data := ch().Data(Up)
	for _, s := range []string{
		"", "weft", "weft.v1", "weft.v1.", "weft.v2.hb.w1", "weft.v1x.hb.w1", "WEFT.v1.hb.w1", "foo.weft.v1.hb.w1",
		"$JS.API.STREAM.DELETE.X", "_INBOX.abc", ">", "weft.v1.>", Heartbeats(), Log("acme"),
		"weft.v1.hb", "weft.v1.hb.", "weft.v1.hb.w1.", "weft.v1..hb.w1", "weft.v1.hb.w1.more", "weft.v1.op", "weft.v1.api.acme",
		"weft.v1.xx.a.b", "weft.v1.hb.W1", "weft.v1.hb.w 1", "weft.v1.hb.w1\r\nPUB x", "weft.v1.hb.w\x00",
		data + ".up", data + ".", strings.TrimSuffix(data, ".up"), strings.TrimSuffix(data, "up") + "side",
		strings.Replace(data, ".7d.", ".7e.", 1), // a shard that is not the channel's
		strings.Replace(data, ".7d.", ".7.", 1), strings.Replace(data, ".7d.", ".", 1),
		strings.Replace(ch().Control(Up), ".acme.", ".acme.7d.", 1), // a shard where there is none
		Channel{"a", "b", "c", "d0"}.Data(Dir(3)),
		API(strings.Repeat("a", 64), APIList), API(strings.Repeat("a", 5000), APIList),
		"weft.v1." + strings.Repeat("a.", 5000),
	} {
		if got, err := Parse(s); err == nil {
			t.Errorf("%.80q is taken as %+v", s, got)
		} else if strings.ContainsAny(err.Error(), "\r\n\x00") || len(err.Error()) > 200 {
			t.Errorf("%.80q: the error repeats it: %q", s, err)
		}
	}
}

// badTokens are the ids of S-008.
func badTokens() []string {
	return []string{"a.b", "*", ">", "a b", "\t", "a\tb", "a\r\nPUB x", "", "_INBOX", "$JS", "..", "-a", "a-", "-", "A", "ä", "a\x00", "a_b", "\xff"}
}

func TestS008_Tokens(t *testing.T) {
	for _, good := range []string{"a", "0", "a-b", "a--b", "default", lease, route} {
		if err := CheckToken(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range badTokens() {
		err := CheckToken(bad)
		if err == nil {
			t.Errorf("%q is taken", bad)
			continue
		}
		if strings.ContainsAny(err.Error(), "\r\n\t\x00\xff*>$.") {
			t.Errorf("%q: the error repeats it: %q", bad, err)
		}
		for field, c := range map[string]Channel{
			"tenant":  {bad, route, lease, channel},
			"route":   {"acme", bad, lease, channel},
			"lease":   {"acme", route, bad, channel},
			"channel": {"acme", route, lease, bad},
		} {
			if err := c.Check(); err == nil || !strings.HasPrefix(err.Error(), field) {
				t.Errorf("%s %q: %v", field, bad, err)
			}
			if len(bad) > 1 {
				for _, s := range []string{c.Data(Up), c.Live(Down), c.Control(Up)} {
					if got, err := Parse(s); err == nil && got.Channel == c {
						t.Errorf("%s %q parses back", field, bad)
					}
				}
			}
		}
		for _, s := range []string{Heartbeat(bad), ToCoordinator(bad, WRRenew), ToWorker(bad, WKOpen), API(bad, APIOpen), API("acme", bad), Replay(bad), Operator(bad)} {
			if got, err := Parse(s); err == nil {
				t.Errorf("%q parses as %+v", s, got)
			}
		}
	}
	if err := ch().Check(); err != nil {
		t.Error(err)
	}
	if err := (Channel{"acme", route, lease, "7"}).Check(); err == nil {
		t.Error("a channel without a shard is taken")
	}
}

func TestS010_TokenLengths(t *testing.T) {
	for n, ok := range map[int]bool{1: true, 62: true, 63: true, 64: false, 5000: false} {
		err := CheckToken(strings.Repeat("a", n))
		if (err == nil) != ok {
			t.Errorf("%d bytes: %v", n, err)
		}
		if err != nil && len(err.Error()) > 100 {
			t.Errorf("%d bytes: the error is %d bytes long", n, len(err.Error()))
		}
	}
	longest := strings.Repeat("a", MaxToken)
	c := Channel{longest, longest, longest, longest}
	if s := c.Data(Down); len(s) > 512 {
		t.Errorf("the longest subject is %d bytes", len(s))
	} else if got, err := Parse(s); err != nil || got.Channel != c {
		t.Errorf("the longest subject does not parse: %v", err)
	}
}

// matches is NATS's rule: * is one token, > is one or more at the end.
func matches(pattern, subject string) bool {
	p, s := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, tok := range p {
		if tok == ">" {
			return i == len(p)-1 && len(s) > i
		}
		if i >= len(s) || tok != "*" && tok != s[i] {
			return false
		}
	}
	return len(p) == len(s)
}

// TestPatternsMatchNothingElse: each pattern takes exactly the listed subjects
// out of all that weft makes, those of a second tenant, worker and route included.
func TestPatternsMatchNothingElse(t *testing.T) {
	all := map[string]string{}
	for _, tenant := range []string{"acme", "bolt"} {
		for _, r := range []string{route, "other"} {
			c := Channel{Tenant: tenant, Route: r, Lease: lease, Channel: channel}
			for _, d := range []Dir{Up, Down} {
				all[fmt.Sprintf("ch %s %s %s", tenant, r, d)] = c.Data(d)
				all[fmt.Sprintf("lv %s %s %s", tenant, r, d)] = c.Live(d)
				all[fmt.Sprintf("ct %s %s %s", tenant, r, d)] = c.Control(d)
			}
			all[fmt.Sprintf("keepalive %s %s", tenant, r)] = KeepaliveUp(tenant, r, client)
		}
		all["api open "+tenant], all["api get "+tenant] = API(tenant, APIOpen), API(tenant, APIGet)
		all["rp "+tenant], all["ev "+tenant] = Replay(tenant), Event(tenant, "lease.granted")
	}
	for _, w := range []string{"w1", "w2"} {
		all["hb "+w] = Heartbeat(w)
		all["wr renew "+w], all["wr ended "+w] = ToCoordinator(w, WRRenew), ToCoordinator(w, WREnded)
		all["wk open "+w], all["wk bind "+w] = ToWorker(w, WKOpen), ToWorker(w, WKBind)
	}
	all["op workers"] = Operator(OpWorkers)
	for pattern, want := range map[string][]string{
		WorkerLive(route):          {"lv acme " + route + " up", "lv bolt " + route + " up"},
		WorkerControl(route):       {"ct acme " + route + " up", "ct bolt " + route + " up", "keepalive acme " + route, "keepalive bolt " + route},
		Log("acme"):                {"ch acme " + route + " up", "ch acme " + route + " down", "ch acme other up", "ch acme other down"},
		LogRepublish("acme"):       {"lv acme " + route + " up", "lv acme " + route + " down", "lv acme other up", "lv acme other down"},
		Heartbeats():               {"hb w1", "hb w2"},
		ToCoordinators(WRRenew):    {"wr renew w1", "wr renew w2"},
		Orders("w1"):               {"wk open w1", "wk bind w1"},
		APIs(APIOpen):              {"api open acme", "api open bolt"},
		ch().Data(Up):              {"ch acme " + route + " up"},
		Operator(OpWorkers):        {"op workers"},
		API("acme", APIOpen):       {"api open acme"},
		ToWorker("w2", WKBind):     {"wk bind w2"},
		Replay("bolt"):             {"rp bolt"},
		KeepaliveUp("x", "y", "z"): nil,
	} {
		wanted := map[string]bool{}
		for _, name := range want {
			if _, ok := all[name]; !ok {
				t.Fatalf("%q is not in the list", name)
			}
			wanted[name] = true
		}
		for name, s := range all {
			if matches(pattern, s) != wanted[name] {
				t.Errorf("%s matches %s: %t; want %t", pattern, s, !wanted[name], wanted[name])
			}
		}
	}
}

func drawToken(t *rapid.T, label string) string {
	return rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?`).Draw(t, label)
}

func TestParseRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Channel{drawToken(t, "tenant"), drawToken(t, "route"), drawToken(t, "lease"), "ab" + drawToken(t, "channel")}
		c.Channel = strings.TrimRight(c.Channel[:min(len(c.Channel), MaxToken)], "-")
		d := rapid.SampledFrom([]Dir{Up, Down}).Draw(t, "dir")
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
		for kind, s := range map[Kind]string{KindData: c.Data(d), KindLive: c.Live(d), KindControl: c.Control(d)} {
			if got, err := Parse(s); err != nil || got != (Subject{Kind: kind, Channel: c, Dir: d}) {
				t.Fatalf("%s is %+v, %v", s, got, err)
			}
		}
		worker, verb := drawToken(t, "worker"), drawToken(t, "verb")
		if got, err := Parse(ToWorker(worker, verb)); err != nil || got != (Subject{Kind: KindToWorker, Worker: worker, Verb: verb}) {
			t.Fatalf("%+v, %v", got, err)
		}
	})
}

// spell is the inverse of Parse.
func spell(s Subject) string {
	switch s.Kind {
	case KindData:
		return s.Channel.Data(s.Dir)
	case KindLive:
		return s.Channel.Live(s.Dir)
	case KindControl:
		return s.Channel.Control(s.Dir)
	case KindHeartbeat:
		return Heartbeat(s.Worker)
	case KindToCoord:
		return ToCoordinator(s.Worker, s.Verb)
	case KindToWorker:
		return ToWorker(s.Worker, s.Verb)
	case KindAPI:
		return API(s.Tenant, s.Verb)
	case KindReplay:
		return Prefix + ".rp." + s.Tenant + "." + s.Verb
	case KindOperator:
		return Operator(s.Verb)
	}
	return ""
}

// FuzzParseSubject: what parses is spelt the same again.
func FuzzParseSubject(f *testing.F) {
	for _, s := range list() {
		f.Add(s.got)
	}
	for _, bad := range badTokens() {
		f.Add(API(bad, APIOpen))
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := Parse(s)
		if err != nil {
			return
		}
		if again := spell(got); again != s {
			t.Fatalf("%q parses to %+v, which is spelt %q", s, got, again)
		}
	})
}
