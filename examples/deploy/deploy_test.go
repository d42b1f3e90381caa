// Package deploy_test holds the files of this folder to what docs/deploy.md promises
// of them. That they work is run by cmd/lanetrace's TestPod.
package deploy_test

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v2"
	"golang.org/x/sys/unix"

	"github.com/lanetrace/lanetrace/spanring"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if image.dir != "" {
		os.RemoveAll(image.dir)
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// image is the binary as the Dockerfile makes it.
var image struct {
	once sync.Once
	dir  string
	err  error
}

// instruction is a line of a Dockerfile.
type instruction struct{ name, args string }

func dockerfile(t *testing.T) (out []instruction) {
	t.Helper()
	for l := range strings.Lines(read(t, "Dockerfile")) {
		if l = strings.TrimSpace(l); l == "" || l[0] == '#' {
			continue
		}
		if strings.HasSuffix(l, `\`) || strings.Contains(l, "<<") || strings.Contains(l, "--mount") {
			t.Fatalf("not every builder, and not this test, reads %q", l)
		}
		name, args, _ := strings.Cut(l, " ")
		out = append(out, instruction{name, strings.TrimSpace(args)})
	}
	return out
}

// build builds with the Dockerfile's own command and argument.
func build(t *testing.T, to, nvml string) error {
	var build string
	for _, i := range dockerfile(t) {
		if i.name == "RUN" && strings.Contains(i.args, "go build") {
			build = i.args
		}
	}
	if !strings.Contains(build, "-o /out/lanetrace ") {
		return fmt.Errorf("no build in the Dockerfile: %q", build)
	}
	c := exec.Command("sh", "-ec", strings.ReplaceAll(build, "/out/lanetrace", `"$TO"`))
	c.Dir = "../.." // what is copied to /src
	c.Env = append(os.Environ(), "NVML="+nvml, "TO="+to)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	return nil
}

// binary is the one of the Dockerfile as it is.
func binary(t *testing.T) string {
	t.Helper()
	image.once.Do(func() {
		if image.dir, image.err = os.MkdirTemp("", "lanetrace-image-"); image.err != nil {
			return
		}
		image.err = build(t, filepath.Join(image.dir, "lanetrace"), "0")
		if err := os.Chmod(image.dir, 0o755); err != nil {
			image.err = errors.Join(image.err, err)
		}
	})
	if image.err != nil {
		t.Fatal(image.err)
	}
	return filepath.Join(image.dir, "lanetrace")
}

// hostless is an image's name without a registry's host.
func hostless(name string) bool {
	first, _, more := strings.Cut(name, "/")
	return name != "" && (!more || !strings.ContainsAny(first, ".:") && first != "localhost")
}

// settings are the variables that the command's help names.
func settings(t *testing.T, command string) map[string]bool {
	t.Helper()
	out, err := exec.Command(binary(t), command, "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%s --help: %v\n%s", command, err, out)
	}
	m := make(map[string]bool)
	for _, s := range regexp.MustCompile(`\$(LANETRACE_[A-Z_]+)`).FindAllStringSubmatch(string(out), -1) {
		m[s[1]] = true
	}
	if !m["LANETRACE_DIR"] {
		t.Fatalf("%s --help names no variables:\n%s", command, out)
	}
	return m
}

func TestDockerfile(t *testing.T) {
	is := dockerfile(t)
	args := map[string]string{}
	var from, copied []string
	last := map[string]string{} // of the last stage
	for _, i := range is {
		switch i.name {
		case "ARG":
			k, v, _ := strings.Cut(i.args, "=")
			args["${"+k+"}"] = v
			if !hostless(v) {
				t.Errorf("ARG %s names a host", i.args)
			}
		case "FROM":
			from = append(from, i.args)
			last, copied = map[string]string{}, nil
		case "COPY":
			copied = append(copied, i.args)
		case "WORKDIR", "RUN", "USER", "EXPOSE", "ENTRYPOINT", "CMD":
			last[i.name] = i.args
		default:
			t.Errorf("instruction %s", i.name)
		}
	}
	if d := cmp.Diff([]string{"${BUILD_IMAGE} AS build", "${BASE_IMAGE}"}, from); d != "" || args["${BASE_IMAGE}"] != "scratch" {
		t.Errorf("stages (-want +got):\n%s%v", d, args)
	}
	want := map[string]string{"USER": "65532:65532", "EXPOSE": "9478", "ENTRYPOINT": `["/usr/local/bin/lanetrace"]`, "CMD": `["sidecar"]`}
	if d := cmp.Diff(want, last); d != "" {
		t.Errorf("the image (-want +got):\n%s", d)
	}
	for _, k := range []string{"ENTRYPOINT", "CMD"} {
		if err := json.Unmarshal([]byte(last[k]), new([]string)); err != nil {
			t.Errorf("%s %s: %v", k, last[k], err)
		}
	}
	wantCopied := []string{
		"--from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt",
		"--from=build /out/lanetrace /usr/local/bin/lanetrace",
		"--from=build --chown=65532:65532 /out/state /var/lib/lanetrace",
	}
	if d := cmp.Diff(wantCopied, copied); d != "" {
		t.Errorf("copied (-want +got):\n%s", d)
	}

	// Nothing but the binary is needed to run it.
	f, err := elf.Open(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if libs, err := f.ImportedLibraries(); len(libs) > 0 || err != nil {
		t.Errorf("the binary needs %v, %v", libs, err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the binary needs a loader")
		}
	}
	if f.Section(".symtab") != nil {
		t.Error("the binary is not stripped")
	}
	if out, err := exec.Command(binary(t), "version").CombinedOutput(); err != nil || !bytes.Contains(out, []byte("cgo off")) {
		t.Errorf("version: %v\n%s", err, out)
	}
}

// With NVML=1 it reads GPUs, and needs the C library for that and nothing else.
func TestDockerfileNVML(t *testing.T) {
	to := filepath.Join(t.TempDir(), "lanetrace")
	if err := build(t, to, "1"); err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if libs, err := f.ImportedLibraries(); err != nil || !slices.Contains(libs, "libc.so.6") || slices.ContainsFunc(libs, func(l string) bool {
		return !slices.Contains([]string{"libc.so.6", "libresolv.so.2", "libdl.so.2", "libpthread.so.0", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}, l)
	}) {
		t.Errorf("the binary needs %v, %v", libs, err)
	}
	if out, err := exec.Command(to, "version").CombinedOutput(); err != nil || !bytes.Contains(out, []byte("cgo on")) {
		t.Errorf("version: %v\n%s", err, out)
	}
}

// Of Kubernetes' types, what the manifests use: a field that is not here is refused,
// as is one that is misspelt.
type (
	meta struct {
		Name   string
		Labels map[string]string
	}
	matchLabels struct {
		MatchLabels map[string]string `yaml:"matchLabels"`
	}
	deployment struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   meta
		Spec       struct {
			Replicas int
			Selector matchLabels
			Template struct {
				Metadata meta
				Spec     podSpec
			}
		}
	}
	podSpec struct {
		AutomountServiceAccountToken *bool           `yaml:"automountServiceAccountToken"`
		EnableServiceLinks           *bool           `yaml:"enableServiceLinks"`
		HostPID                      bool            `yaml:"hostPID"`
		HostIPC                      bool            `yaml:"hostIPC"`
		HostNetwork                  bool            `yaml:"hostNetwork"`
		ShareProcessNamespace        bool            `yaml:"shareProcessNamespace"`
		SecurityContext              securityContext `yaml:"securityContext"`
		InitContainers               []podContainer  `yaml:"initContainers"`
		Containers                   []podContainer
		Volumes                      []volume
	}
	securityContext struct {
		RunAsNonRoot             bool   `yaml:"runAsNonRoot"`
		RunAsUser                int    `yaml:"runAsUser"`
		RunAsGroup               int    `yaml:"runAsGroup"`
		FSGroup                  int    `yaml:"fsGroup"`
		ReadOnlyRootFilesystem   bool   `yaml:"readOnlyRootFilesystem"`
		AllowPrivilegeEscalation *bool  `yaml:"allowPrivilegeEscalation"`
		Privileged               bool   `yaml:"privileged"`
		SeccompProfile           *named `yaml:"seccompProfile"`
		Capabilities             struct{ Add, Drop []string }
	}
	named        struct{ Type string }
	podContainer struct {
		Name, Image     string
		RestartPolicy   string `yaml:"restartPolicy"`
		Command, Args   []string
		Env             []struct{ Name, Value string }
		Ports           []containerPort
		LivenessProbe   *probe          `yaml:"livenessProbe"`
		ReadinessProbe  *probe          `yaml:"readinessProbe"`
		StartupProbe    *probe          `yaml:"startupProbe"`
		SecurityContext securityContext `yaml:"securityContext"`
		Resources       struct{ Requests, Limits map[string]string }
		VolumeMounts    []mount `yaml:"volumeMounts"`
	}
	containerPort struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	probe struct {
		HTTPGet struct {
			Path string
			Port string
		} `yaml:"httpGet"`
		PeriodSeconds    int `yaml:"periodSeconds"`
		TimeoutSeconds   int `yaml:"timeoutSeconds"`
		FailureThreshold int `yaml:"failureThreshold"`
	}
	mount struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		SubPath   string `yaml:"subPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	}
	volume struct {
		Name     string
		EmptyDir struct {
			Medium    string
			SizeLimit string `yaml:"sizeLimit"`
		} `yaml:"emptyDir"`
	}
	podMonitor struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   meta
		Spec       struct {
			Selector  matchLabels
			Endpoints []struct {
				Port, Path    string
				Interval      string
				ScrapeTimeout string `yaml:"scrapeTimeout"`
			} `yaml:"podMetricsEndpoints"`
		}
	}
)

func (c *podContainer) env(name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

// mebibytes is a quantity such as 64Mi.
func mebibytes(t *testing.T, s string) int64 {
	t.Helper()
	for suffix, unit := range map[string]int64{"MiB": 1, "Mi": 1, "Gi": 1024, "M": 1} {
		if n, err := strconv.ParseInt(strings.TrimSuffix(s, suffix), 10, 64); err == nil && strings.HasSuffix(s, suffix) {
			return n * unit
		}
	}
	t.Fatalf("not a quantity: %q", s)
	return 0
}

func TestKubernetes(t *testing.T) {
	var d deployment
	if err := yaml.UnmarshalStrict([]byte(read(t, "kubernetes/model-server.yaml")), &d); err != nil {
		t.Fatal(err)
	}
	pod := d.Spec.Template.Spec
	if d.APIVersion != "apps/v1" || d.Kind != "Deployment" || len(pod.InitContainers) != 2 || len(pod.Containers) != 1 {
		t.Fatalf("%s %s with %d and %d containers", d.APIVersion, d.Kind, len(pod.InitContainers), len(pod.Containers))
	}
	if d := cmp.Diff(d.Spec.Selector.MatchLabels, d.Spec.Template.Metadata.Labels); d != "" {
		t.Errorf("the selector selects other pods:\n%s", d)
	}
	first, sidecar, engine := &pod.InitContainers[0], &pod.InitContainers[1], &pod.Containers[0]

	// Nothing of the node, nothing of each other.
	if pod.HostPID || pod.HostIPC || pod.HostNetwork || pod.ShareProcessNamespace {
		t.Error("the pod shares namespaces")
	}
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Error("the pod has a token")
	}
	sc := pod.SecurityContext
	if !sc.RunAsNonRoot || sc.RunAsUser == 0 || sc.SeccompProfile == nil || sc.SeccompProfile.Type != "RuntimeDefault" {
		t.Errorf("the pod's security context: %+v", sc)
	}
	for _, c := range []*podContainer{first, sidecar} {
		s := c.SecurityContext
		if !s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.Privileged || s.RunAsNonRoot ||
			!slices.Equal(s.Capabilities.Drop, []string{"ALL"}) || len(s.Capabilities.Add) > 0 {
			t.Errorf("%s's security context: %+v", c.Name, s)
		}
		if c.Command != nil {
			t.Errorf("%s does not run the image's entry point: %v", c.Name, c.Command)
		}
	}
	if u := first.SecurityContext.RunAsUser; u != 0 && u != sc.RunAsUser {
		t.Errorf("the ring directory is made by user %d, the engine is user %d", u, sc.RunAsUser)
	}
	if s := sidecar.SecurityContext; s.RunAsUser != 65532 || s.RunAsUser == sc.RunAsUser {
		t.Errorf("the sidecar is user %d", s.RunAsUser)
	}

	// A native sidecar that the engine neither waits for nor depends on.
	if sidecar.RestartPolicy != "Always" || first.RestartPolicy != "" || sidecar.StartupProbe != nil || sidecar.ReadinessProbe != nil || sidecar.LivenessProbe == nil {
		t.Errorf("sidecar: restart policy %q, probes %v %v %v", sidecar.RestartPolicy, sidecar.StartupProbe, sidecar.ReadinessProbe, sidecar.LivenessProbe)
	} else if sidecar.LivenessProbe.HTTPGet.Path != "/healthz" || sidecar.LivenessProbe.HTTPGet.Port != sidecar.Ports[0].Name {
		t.Errorf("liveness: %+v", sidecar.LivenessProbe)
	}
	if !slices.Equal(first.Args, []string{"mkdir"}) || !slices.Equal(sidecar.Args, []string{"sidecar"}) {
		t.Errorf("arguments %v, %v", first.Args, sidecar.Args)
	}
	for _, c := range []*podContainer{first, sidecar} {
		known := settings(t, c.Args[0])
		for _, e := range c.Env {
			if strings.HasPrefix(e.Name, "LANETRACE_") && !known[e.Name] {
				t.Errorf("%s: no setting %s", c.Name, e.Name)
			}
		}
	}
	if limit, goLimit := mebibytes(t, sidecar.Resources.Limits["memory"]), mebibytes(t, sidecar.env("GOMEMLIMIT")); goLimit != limit*8/10 {
		t.Errorf("GOMEMLIMIT is %d MiB of %d", goLimit, limit)
	}
	if sidecar.Resources.Limits["cpu"] != "" {
		t.Error("a limit of processor time would throttle reading")
	}

	// One directory, one group.
	const rings = "/run/lanetrace/rings"
	for _, c := range []*podContainer{first, sidecar, engine} {
		if c.env("LANETRACE_DIR") != rings || c.env("LANETRACE_GROUP") != strconv.Itoa(sc.FSGroup) {
			t.Errorf("%s: %v, fsGroup %d", c.Name, c.Env, sc.FSGroup)
		}
		if !hostless(c.Image) {
			t.Errorf("image %s names a host", c.Image)
		}
		want := mount{Name: "rings", MountPath: rings, SubPath: path.Base(rings)}
		if c == first {
			want = mount{Name: "rings", MountPath: path.Dir(rings)}
		}
		if len(c.VolumeMounts) == 0 || c.VolumeMounts[0] != want {
			t.Errorf("%s: mounts %+v, want %+v", c.Name, c.VolumeMounts, want)
		}
	}
	if m := sidecar.VolumeMounts; len(m) != 2 || m[1].MountPath != sidecar.env("LANETRACE_STATE_DIR") || m[1].Name != pod.Volumes[1].Name {
		t.Errorf("the sidecar's state: %+v", m)
	}

	// The size follows from the rings: one for each of seven engines, and two dead.
	v := pod.Volumes[0]
	if v.Name != "rings" || v.EmptyDir.Medium != "Memory" || v.EmptyDir.SizeLimit != "64Mi" {
		t.Errorf("volume %+v", v)
	}
	ring := spanring.DefaultGeometry.FileBytes()
	if size := mebibytes(t, v.EmptyDir.SizeLimit) << 20; size < (7+2)*ring || size > (8+2)*ring {
		t.Errorf("%d bytes are not for seven engines with %d each", size, ring)
	}

	// Prometheus finds it.
	var m podMonitor
	if err := yaml.UnmarshalStrict([]byte(read(t, "kubernetes/podmonitor.yaml")), &m); err != nil {
		t.Fatal(err)
	}
	if m.APIVersion != "monitoring.coreos.com/v1" || m.Kind != "PodMonitor" || len(m.Spec.Endpoints) != 1 {
		t.Fatalf("%+v", m)
	}
	e := m.Spec.Endpoints[0]
	interval, err := time.ParseDuration(e.Interval)
	timeout, terr := time.ParseDuration(e.ScrapeTimeout)
	if err != nil || terr != nil || timeout >= interval || e.Path != "/metrics" || e.Port != sidecar.Ports[0].Name {
		t.Errorf("endpoint %+v", e)
	}
	if d := cmp.Diff(d.Spec.Template.Metadata.Labels, m.Spec.Selector.MatchLabels); d != "" {
		t.Errorf("it looks for other pods:\n%s", d)
	}
	if p := sidecar.Ports[0]; sidecar.env("LANETRACE_LISTEN") != fmt.Sprintf(":%d", p.ContainerPort) {
		t.Errorf("listens on %s, port %+v", sidecar.env("LANETRACE_LISTEN"), p)
	}

	// A typo is found.
	for _, bad := range []string{"spec: {replica: 1}", "spec: {template: {spec: {hostPid: true}}}", "kind: A\nkind: B"} {
		if err := yaml.UnmarshalStrict([]byte(bad), new(deployment)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// unit is the settings of a systemd file's service, in order; lines of one name add
// up.
func unit(t *testing.T, name string) map[string][]string {
	t.Helper()
	m := make(map[string][]string)
	section := ""
	for l := range strings.Lines(read(t, name)) {
		if l = strings.TrimSpace(l); l == "" || l[0] == '#' {
			continue
		}
		if l[0] == '[' {
			section = l
			continue
		}
		k, v, ok := strings.Cut(l, "=")
		if !ok {
			t.Fatalf("%s: %q", name, l)
		}
		if section == "[Service]" {
			m[k] = append(m[k], v)
		}
	}
	return m
}

func environment(m map[string][]string) map[string]string {
	env := make(map[string]string)
	for _, s := range m["Environment"] {
		for f := range strings.FieldsSeq(s) {
			k, v, _ := strings.Cut(f, "=")
			env[k] = v
		}
	}
	return env
}

func TestSystemd(t *testing.T) {
	u := unit(t, "systemd/lanetrace.service")
	for k, want := range map[string]string{
		"DynamicUser": "yes", "SupplementaryGroups": "lanetrace", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes",
		"PrivateTmp": "yes", "PrivateDevices": "yes", "CapabilityBoundingSet": "", "AmbientCapabilities": "", "ReadWritePaths": "/run/lanetrace",
		"MemoryDenyWriteExecute": "yes", "RestrictNamespaces": "yes", "UMask": "0077", "Restart": "always", "ExecStart": "/usr/local/bin/lanetrace sidecar",
	} {
		if got, ok := u[k]; !ok || len(got) != 1 || got[0] != want {
			t.Errorf("%s=%q, want %q", k, got, want)
		}
	}
	env := environment(u)
	known := settings(t, "sidecar")
	for k := range env {
		if strings.HasPrefix(k, "LANETRACE_") && !known[k] {
			t.Errorf("no setting %s", k)
		}
	}
	if d := cmp.Diff(map[string]string{"LANETRACE_DIR": env["LANETRACE_DIR"], "LANETRACE_GROUP": env["LANETRACE_GROUP"]}, environment(unit(t, "systemd/engine.conf"))); d != "" {
		t.Errorf("engines have other settings:\n%s", d)
	}
	// The unit gives no device; its drop-in the driver's, and no others.
	want := map[string][]string{"PrivateDevices": {"no"}, "DevicePolicy": {"closed"}, "DeviceAllow": {"char-nvidia* rw"}, "ProcSubset": {"all"}}
	if d := cmp.Diff(want, unit(t, "systemd/gpus.conf")); d != "" {
		t.Errorf("gpus.conf (-want +got):\n%s", d)
	}
	if limit, goLimit := mebibytes(t, u["MemoryMax"][0]), mebibytes(t, env["GOMEMLIMIT"]); goLimit != limit*8/10 {
		t.Errorf("GOMEMLIMIT is %d MiB of %d", goLimit, limit)
	}
	if !strings.Contains(read(t, "systemd/lanetrace.sysusers"), "\ng lanetrace "+env["LANETRACE_GROUP"]+"\n") {
		t.Errorf("the group's number is not %s", env["LANETRACE_GROUP"])
	}
	if !strings.Contains(read(t, "systemd/lanetrace.tmpfiles"), "\nd "+env["LANETRACE_DIR"]+" 2770 root lanetrace -\n") {
		t.Errorf("%s is not made", env["LANETRACE_DIR"])
	}
}

// tool runs one of systemd's tools; where there is none, the test is left out
// loudly.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("the units as %s reads them: it is not there", name)
	}
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestSystemdAnalyze has systemd read the unit, and say how exposed it is.
func TestSystemdAnalyze(t *testing.T) {
	p := filepath.Join(t.TempDir(), "lanetrace.service")
	text := strings.ReplaceAll(read(t, "systemd/lanetrace.service"), "/usr/local/bin/lanetrace", strconv.Quote(binary(t)))
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dropIn := range []bool{true, false} {
		dir := p + ".d"
		if dropIn {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "gpus.conf"), []byte(read(t, "systemd/gpus.conf")), 0o600); err != nil {
				t.Fatal(err)
			}
		} else if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if out := tool(t, "systemd-analyze", "verify", "--man=no", p); strings.Contains(out, "lanetrace") {
			t.Errorf("verify, with its drop-in %v:\n%s", dropIn, out)
		}
	}
	out := tool(t, "systemd-analyze", "--no-pager", "security", "--offline=true", p)
	m := regexp.MustCompile(`Overall exposure level for lanetrace.service: ([0-9.]+)`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no level in\n%s", out)
	}
	if level, err := strconv.ParseFloat(m[1], 64); err != nil || level > 1.5 {
		t.Errorf("exposure %s, want at most 1.5\n%s", m[1], out)
	}
}

// TestSystemdDirectory has systemd make the group and the ring directory, which an
// engine then takes.
func TestSystemdDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the ring directory as systemd makes it: takes root")
	}
	root := t.TempDir()
	for _, d := range []string{"etc", "run", "usr/lib/sysusers.d", "usr/lib/tmpfiles.d"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for from, to := range map[string]string{"systemd/lanetrace.sysusers": "usr/lib/sysusers.d/lanetrace.conf", "systemd/lanetrace.tmpfiles": "usr/lib/tmpfiles.d/lanetrace.conf"} {
		if err := os.WriteFile(filepath.Join(root, to), []byte(read(t, from)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tool(t, "systemd-sysusers", "--root="+root)
	tool(t, "systemd-tmpfiles", "--root="+root, "--create", "--prefix=/run/lanetrace")
	d := spanring.Dir{Path: filepath.Join(root, "run/lanetrace"), Group: 65532}
	var st unix.Stat_t
	if err := unix.Lstat(d.Path, &st); err != nil || st.Uid != 0 || st.Gid != 65532 || st.Mode&0o7777 != 0o2770 {
		t.Fatalf("%d:%d, mode %#o, %v", st.Uid, st.Gid, st.Mode&0o7777, err)
	}
	if err := errors.Join(d.Check(), d.CheckReadable()); err != nil {
		t.Error(err)
	}
}
