package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/lanetrace/lanetrace/spanring"
)

// What docs/deploy.md and examples/deploy say of a pod is run here: engines and a
// sidecar in containers that share nothing but one tmpfs.

const (
	// noNamespacesEnv gives this test up where containers cannot be made.
	noNamespacesEnv = "LANETRACE_TEST_NO_NAMESPACES"
	nodeEnv         = "LANETRACE_TEST_NODE"      // set in the process that plays the node
	containerEnv    = "LANETRACE_TEST_CONTAINER" // set in a process that becomes a container

	sidecarUser = 65532
	podRings    = "/run/lanetrace/rings"
)

// container is a process shut in: namespaces of its own for mounts, processes and
// IPC, its own read-only root, no privileges to be gained.
type container struct {
	Root       string            // the image's folder
	Mounts     map[string]string // writable, by their path inside
	User       int
	Groups     []int
	Privileged bool // keeps the user's capabilities
	Args, Env  []string
}

func init() {
	if s := os.Getenv(containerEnv); s != "" {
		runtime.LockOSThread()
		var c container
		err := json.Unmarshal([]byte(s), &c)
		if err == nil {
			err = c.become()
		}
		fmt.Fprintln(os.Stderr, "container:", err)
		os.Exit(125)
	}
}

// become makes this process, the first of its namespaces, the container's.
func (c *container) become() error {
	// step runs f unless one before it failed.
	var err error
	step := func(what string, f func() error) {
		if err == nil {
			if err = f(); err != nil {
				err = fmt.Errorf("%s: %w", what, err)
			}
		}
	}
	bind := func(from, to string) func() error {
		return func() error { return unix.Mount(from, to, "", unix.MS_BIND, "") }
	}
	step("keep mounts private", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") })
	step("bind the image", bind(c.Root, c.Root))
	for to, from := range c.Mounts {
		step("bind "+to, bind(from, filepath.Join(c.Root, to)))
	}
	step("mount /proc", func() error {
		return unix.Mount("proc", filepath.Join(c.Root, "proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	})
	step("make the root read-only", func() error {
		return unix.Mount("", c.Root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
	})
	step("enter the root", func() error { return os.Chdir(c.Root) })
	step("pivot", func() error { return unix.PivotRoot(".", ".") })
	step("leave the node's root", func() error { return unix.Unmount(".", unix.MNT_DETACH) })
	step("enter /", func() error { return os.Chdir("/") })
	if !c.Privileged {
		for i := uintptr(0); i <= unix.CAP_LAST_CAP; i++ {
			step("drop capabilities", func() error { return unix.Prctl(unix.PR_CAPBSET_DROP, i, 0, 0, 0) })
		}
	}
	step("set groups", func() error { return syscall.Setgroups(c.Groups) })
	step("set the group", func() error { return syscall.Setresgid(c.User, c.User, c.User) })
	step("set the user", func() error { return syscall.Setresuid(c.User, c.User, c.User) })
	step("gain no privileges", func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
	step("run "+c.Args[0], func() error { return syscall.Exec(c.Args[0], c.Args, c.Env) })
	return err
}

// running is a container that runs.
type running struct {
	cmd      *exec.Cmd
	out, err output
	ended    chan struct{}
}

func (c container) start(t *testing.T) *running {
	t.Helper()
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{cmd: exec.Command("/proc/self/exe"), ended: make(chan struct{})}
	r.cmd.Env = []string{containerEnv + "=" + string(b)}
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.err
	r.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC, Pdeathsig: syscall.SIGKILL,
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait() // the exit code says it
		close(r.ended)
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.ended
	})
	return r
}

// wait is the container's exit code.
func (r *running) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-r.ended:
		return r.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatalf("container does not end; it said:\n%s%s", r.out.String(), r.err.String())
		return -1
	}
}

// status is the field of /proc/PID/status, as the node sees it.
func (r *running) status(t *testing.T, field string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(l, field+":"); ok {
			return strings.Join(strings.Fields(v), " ")
		}
	}
	t.Fatalf("no %s in\n%s", field, b)
	return ""
}

// posts is an OTLP receiver over HTTP that keeps what it is sent as it came.
type posts struct {
	mu     sync.Mutex
	bodies map[string][][]byte // by path
}

func (p *posts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bodies[r.URL.Path] = append(p.bodies[r.URL.Path], b)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// of is all that came to path.
func (p *posts) of(path string) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Join(p.bodies[path], nil)
}

// TestPod runs TestOnNode in a mount namespace of its own.
func TestPod(t *testing.T) {
	if os.Getenv(noNamespacesEnv) != "" {
		t.Skipf("engines and sidecar in containers of their own: %s is set", noNamespacesEnv)
	}
	if os.Geteuid() != 0 {
		t.Skip("engines and sidecar in containers of their own: they take root to make")
	}
	manifest, err := os.ReadFile("../../examples/deploy/kubernetes/model-server.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"mountPath: " + podRings, "sizeLimit: 64Mi", "args: [mkdir]", fmt.Sprintf("runAsUser: %d", sidecarUser), fmt.Sprintf("fsGroup: %d", sidecarUser), "mountPath: /var/lib/lanetrace"} {
		if !bytes.Contains(manifest, []byte(s)) {
			t.Errorf("the manifest is another pod's: no %q", s)
		}
	}
	images := t.TempDir()
	for name, pkg := range map[string]string{"sidecar/lanetrace": ".", "engine/decode": "../../examples/decode"} {
		p := filepath.Join(images, name)
		c := exec.Command("go", "build", "-trimpath", "-o", p, pkg)
		c.Env = append(os.Environ(), "CGO_ENABLED=0") // nothing else in the image, as in a distroless one
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	// Users of all kinds have to get there.
	for p := images; p != "/" && p != "/tmp"; p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, "-test.run=^TestOnNode$", "-test.v", "-test.timeout=5m")
	c.Env = append(os.Environ(), nodeEnv+"="+images)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := c.CombinedOutput()
	var ee *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &ee):
		t.Fatalf("no mount namespace here (%v); %s=1 leaves this test out", err, noNamespacesEnv)
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	case !strings.Contains(string(out), "--- PASS: TestOnNode"):
		t.Fatalf("it did not run:\n%s", out)
	}
	if testing.Verbose() {
		t.Logf("%s", out)
	}
}

// TestOnNode is what a node does with the pod of examples/deploy: one volume, a
// container that makes the ring directory, the sidecar, then engines.
func TestOnNode(t *testing.T) {
	images := os.Getenv(nodeEnv)
	if images == "" {
		return // run by TestPod
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	// A memory-backed emptyDir as fsGroup leaves it: open to all, with the group's
	// bit.
	volume := filepath.Join(t.TempDir(), "volume")
	state := filepath.Join(t.TempDir(), "state")
	for _, p := range []string{volume, state} {
		must(os.MkdirAll(p, 0o755))
		for d := filepath.Dir(p); d != "/" && d != "/tmp"; d = filepath.Dir(d) {
			must(os.Chmod(d, 0o755))
		}
	}
	must(unix.Mount("tmpfs", volume, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64m,mode=2777,gid="+strconv.Itoa(sidecarUser)))
	t.Cleanup(func() { _ = unix.Unmount(volume, unix.MNT_DETACH) })
	must(errors.Join(os.Chown(state, -1, sidecarUser), unix.Chmod(state, 0o2777)))
	for _, im := range []string{"sidecar", "engine"} {
		for _, d := range []string{"proc", "run/lanetrace/rings", "var/lib/lanetrace"} {
			must(os.MkdirAll(filepath.Join(images, im, d), 0o755))
		}
	}
	env := []string{
		"LANETRACE_DIR=" + podRings, "LANETRACE_GROUP=" + strconv.Itoa(sidecarUser), "LANETRACE_STATE_DIR=/var/lib/lanetrace",
		"LANETRACE_LISTEN=127.0.0.1:0", "OTEL_EXPORTER_OTLP_ENDPOINT=", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_METRIC_EXPORT_INTERVAL=500",
	}
	rings := filepath.Join(volume, "rings")
	// What is run beside the sidecar, as with kubectl exec.
	inSidecar := func(args ...string) container {
		return container{
			Root: filepath.Join(images, "sidecar"), User: sidecarUser, Groups: []int{sidecarUser},
			Mounts: map[string]string{podRings: rings, "/var/lib/lanetrace": state},
			Args:   append([]string{"/lanetrace"}, args...), Env: env,
		}
	}
	says := func(want int, args ...string) string {
		t.Helper()
		r := inSidecar(args...).start(t)
		if code := r.wait(t); code != want {
			t.Errorf("%v: exit code %d, want %d\n%s%s", args, code, want, r.out.String(), r.err.String())
		}
		return r.out.String()
	}

	// The first container is the engines' user, without its capabilities, and sees
	// the volume itself.
	first := inSidecar("mkdir")
	first.User, first.Mounts = 0, map[string]string{"/run/lanetrace": volume}
	for range 2 { // a pod that starts again finds it there
		r := first.start(t)
		if code := r.wait(t); code != 0 || r.out.String() != podRings+" is ready for group 65532: engines of this user, sidecars of any\n" {
			t.Fatalf("mkdir: exit code %d\n%s%s", code, r.out.String(), r.err.String())
		}
	}
	var st unix.Stat_t
	must(unix.Lstat(rings, &st))
	if st.Uid != 0 || st.Gid != sidecarUser || st.Mode&0o7777 != 0o2770 {
		t.Errorf("ring directory of %d:%d with mode %#o", st.Uid, st.Gid, st.Mode&0o7777)
	}

	received := &posts{bodies: make(map[string][][]byte)}
	srv := httptest.NewServer(received)
	defer srv.Close()
	otlpURL := srv.URL
	sidecar := inSidecar("sidecar", "--otlp-endpoint", otlpURL, "--every", "1", "--budget", "0", "--keep", "/var/lib/lanetrace/keep").start(t)
	url := urlIn(t, &sidecar.err)
	addr := strings.TrimPrefix(url, "http://")
	eventually(t, "ready before any engine", func() bool {
		code, _, _ := fetch(t, "GET", url+"/readyz")
		return code == 200
	})
	// It is what was said of it.
	zero := "0000000000000000"
	got := map[string]string{}
	for _, k := range []string{"Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs"} {
		got[k] = sidecar.status(t, k)
	}
	four := strings.TrimSpace(strings.Repeat(" 65532", 4))
	want := map[string]string{
		"Uid": four, "Gid": four, "Groups": "65532", "CapInh": zero, "CapPrm": zero, "CapEff": zero, "CapBnd": zero, "CapAmb": zero, "NoNewPrivs": "1",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the sidecar's status (-want +got):\n%s", d)
	}
	if s := sidecar.status(t, "NSpid"); !strings.HasSuffix(s, " 1") {
		t.Errorf("the sidecar's processes: %s", s)
	}
	for _, m := range mountsOf(t, sidecar) {
		writable := m[0] == podRings || m[0] == "/var/lib/lanetrace" || m[0] == "/proc"
		if slices.Contains(strings.Split(m[1], ","), "ro") == writable {
			t.Errorf("mounted at %s: %s", m[0], m[1])
		}
	}

	// Two engines, one root and one a user of the group, each the first process of its namespace, with a secret
	// among their arguments and another in their environment. Nothing of them can be
	// seen from the sidecar but what they write. They serve few requests, to leave the
	// machine to others.
	const secret, envSecret = "7771777177717771777", "hunter2-hunter2"
	engine := container{
		Root: filepath.Join(images, "engine"), Mounts: map[string]string{podRings: rings}, Privileged: true, Groups: []int{},
		Args: []string{"/decode", "--backend", "sim", "--duration", "10m", "--no-verify", "--rate", "50", "--seed", secret}, Env: append(slices.Clone(env), "OTEL_SERVICE_NAME=pod", "API_KEY="+envSecret),
	}
	user := engine
	user.User, user.Groups, user.Privileged = 1000, []int{sidecarUser}, false
	engines := []*running{engine.start(t), user.start(t)}
	landed := func() (n int) {
		for _, a := range accountsOf(t, url) {
			if a.State == "live" && a.Producer.Landed > 0 && a.Sidecar.Received > 0 {
				n++
			}
		}
		return n
	}
	eventually(t, "steps of both engines", func() bool { return landed() == 2 })
	for i, want := range []string{"0 0 0 0", "1000 1000 1000 1000"} {
		if s, uid := engines[i].status(t, "NSpid"), engines[i].status(t, "Uid"); !strings.HasSuffix(s, " 1") || uid != want {
			t.Errorf("engine %d: processes %s, user %s", i, s, uid)
		}
	}
	for _, kind := range []string{"pid", "mnt", "ipc"} {
		seen := map[string]bool{}
		for _, r := range []*running{sidecar, engines[0], engines[1]} {
			ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", r.cmd.Process.Pid, kind))
			if err != nil {
				t.Fatal(err)
			}
			seen[ns] = true
		}
		if len(seen) != 3 {
			t.Errorf("%s namespaces %v", kind, seen)
		}
	}
	labels := map[string]bool{}
	for _, a := range accountsOf(t, url) {
		labels[a.Engine] = true
	}
	if len(labels) != 2 {
		t.Errorf("engines %v", labels)
	}
	eventually(t, "traces and metrics", func() bool {
		return bytes.Count(received.of("/v1/traces"), []byte("decode")) > 100 && bytes.Contains(received.of("/v1/metrics"), []byte("lanetrace.steps"))
	})

	// Asked for from the sidecar's container.
	text := says(0, "level", "set", "kernel")
	if n := strings.Count(text, ": level kernel\n"); n != 2 {
		t.Errorf("level set: %q", text)
	}
	if text := says(0, "level", "get"); strings.Count(text, " kernel ") != 2 {
		t.Errorf("level get: %q", text)
	}
	says(0, "arm", "--steps", "3")
	eventually(t, "armed steps", func() bool {
		_, _, text := fetch(t, "GET", url+"/metrics")
		return regexp.MustCompile(`(?m)^lanetrace_steps_total\{.*armed="true".*\} [1-9]`).MatchString(text)
	})

	doctor := func() map[string][]finding {
		t.Helper()
		r := inSidecar("doctor", "--json", "--listen", addr, "--otlp-endpoint", otlpURL).start(t)
		code := r.wait(t)
		var d diagnosis
		if err := json.Unmarshal([]byte(r.out.String()), &d); err != nil || (code == 0) != d.OK {
			t.Fatalf("doctor: exit code %d, %v\n%s%s", code, err, r.out.String(), r.err.String())
		}
		// An engine may be killed while it writes an entry. That one is lost, as is said.
		torn := uint64(0)
		for _, a := range accountsOf(t, url) {
			if a.State == "died" {
				torn += a.Reader.LostBy["hole"]
			}
		}
		m := map[string][]finding{}
		for _, f := range d.Findings {
			m[f.Check] = append(m[f.Check], f)
			if f.Status == findingTodo && !strings.Contains(f.Text, fmt.Sprintf(", %d lost, 0 spans dropped or rejected", torn)) {
				t.Errorf("doctor: %s: %s: %s", f.Check, f.Text, f.Todo)
			}
		}
		return m
	}
	d := doctor()
	if len(d["engine"]) != 2 || d["ring_directory"][0].Status != findingOK || d["sidecar"][0].Status != findingOK || d["otlp"][0].Status != findingOK {
		t.Errorf("doctor: %+v", d)
	}
	if text := says(0, "report"); !strings.Contains(text, "decode") || !strings.Contains(text, "prefill") {
		t.Errorf("report:\n%s", text)
	}

	// One engine is killed: its death is seen, and what it leaves can be read.
	dead := engines[0]
	must(dead.cmd.Process.Kill())
	<-dead.ended
	at := time.Now()
	eventually(t, "a death", func() bool {
		states := map[string]int{}
		for _, a := range accountsOf(t, url) {
			states[a.State]++
		}
		return states["died"] == 1 && states["live"] == 1
	})
	t.Logf("a death was seen after %v", time.Since(at).Round(time.Millisecond))
	left := doctor()
	states := map[string]int{}
	for _, f := range left["engine"] {
		states[f.Engine.State]++
	}
	if states["died"] != 1 || states["live"] != 1 {
		t.Errorf("doctor after a death: %v", states)
	}
	for _, a := range accountsOf(t, url) {
		if len(a.Unbalanced()) > 0 && a.State != "live" {
			t.Errorf("account of %s: %v", a.Engine, a.Unbalanced())
		}
	}

	// Its flight record is on the volume for state, and can be read from beside.
	var page string
	eventually(t, "a flight record", func() bool {
		pages, err := filepath.Glob(filepath.Join(state, "flight", "*.txt"))
		if err != nil || len(pages) == 0 {
			return false
		}
		page = pages[0]
		return true
	})
	if b, err := os.ReadFile(page); err != nil || !bytes.Contains(b, []byte("pod-")) || !bytes.Contains(b, []byte("decode")) {
		t.Errorf("flight record: %v\n%s", err, b)
	}
	recs, err := filepath.Glob(filepath.Join(state, "flight", "*.ltrec"))
	if err != nil || len(recs) == 0 {
		t.Errorf("recordings of flight records: %v, %v", recs, err)
	} else if text := says(0, "report", filepath.Join("/var/lib/lanetrace/flight", filepath.Base(recs[0]))); !strings.Contains(text, "decode") {
		t.Errorf("report of the record:\n%s", text)
	}

	// All die at once: the sidecar, a member of the group, leaves the newest two.
	more := []*running{user.start(t), engine.start(t)}
	eventually(t, "more engines", func() bool { return landed() == 3 })
	for _, e := range append(more, engines[1]) {
		must(e.cmd.Process.Kill())
	}
	eventually(t, "old rings removed", func() bool {
		l, err := spanring.Dir{Path: rings, Group: sidecarUser}.List()
		return err == nil && len(l) == 2
	})

	// Others get nowhere: not even at the directory's names.
	stranger := inSidecar("doctor")
	stranger.User, stranger.Groups = 65531, []int{}
	r := stranger.start(t)
	if code := r.wait(t); code != 1 || !strings.Contains(r.out.String(), "permission denied") {
		t.Errorf("a stranger: exit code %d\n%s%s", code, r.out.String(), r.err.String())
	}

	// It all fits, with room for the next engine.
	var vfs unix.Statfs_t
	must(unix.Statfs(volume, &vfs))
	if total, free := vfs.Blocks*uint64(vfs.Bsize), vfs.Bavail*uint64(vfs.Bsize); total != 64<<20 || free < uint64(spanring.DefaultGeometry.FileBytes()) {
		t.Errorf("%d of %d bytes free", free, total)
	}

	// Command lines and environments are published nowhere: neither by the engines,
	// whose rings these are, nor by the sidecar.
	_, _, metrics := fetch(t, "GET", url+"/metrics")
	_, _, account := fetch(t, "GET", url+"/debug/account")
	must(sidecar.cmd.Process.Signal(syscall.SIGTERM))
	if code := sidecar.wait(t); code != 0 {
		t.Errorf("the sidecar's exit code is %d\n%s", code, sidecar.err.String())
	}
	published := map[string][]byte{
		"/metrics": []byte(metrics), "account": []byte(account), "log": []byte(sidecar.err.String() + sidecar.out.String()),
		"traces": received.of("/v1/traces"), "OTLP metrics": received.of("/v1/metrics"),
	}
	for _, dir := range []string{rings, state} {
		must(filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				published[p], err = os.ReadFile(p)
			}
			return err
		}))
	}
	if len(published) < 8 {
		t.Errorf("published: %v", slices.Sorted(maps.Keys(published)))
	}
	for what, b := range published {
		for _, s := range []string{secret, envSecret, "process.command", "process.executable.path", "--no-verify"} {
			if bytes.Contains(b, []byte(s)) {
				t.Errorf("%q is in %s", s, what)
			}
		}
	}
	// That would have found it: what may be published is there.
	for _, what := range []string{"traces", "OTLP metrics"} {
		for _, s := range []string{"process.executable.name", "process.pid", "decode", "service.name", "pod"} {
			if !bytes.Contains(published[what], []byte(s)) {
				t.Errorf("%q is not in %s", s, what)
			}
		}
	}
	// Nothing was written anywhere but where it may be.
	for _, im := range []string{"sidecar", "engine"} {
		must(filepath.WalkDir(filepath.Join(images, im), func(p string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() && filepath.Base(p) != "lanetrace" && filepath.Base(p) != "decode" {
				t.Errorf("%s was written", p)
			}
			return err
		}))
	}
}

// mountsOf are the paths and options of a container's mounts.
func mountsOf(t *testing.T, r *running) (out [][2]string) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", r.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) > 5 {
			out = append(out, [2]string{f[4], f[5]})
		}
	}
	if len(out) != 4 {
		t.Errorf("mounts %v", out)
	}
	return out
}
