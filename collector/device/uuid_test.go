package device

import "testing"

func TestUUID(t *testing.T) {
	const digits = "5e1f0000-1234-5678-9abc-def012345678"
	gpu, _ := ParseUUID("GPU-" + digits)
	mig, _ := ParseUUID("MIG-" + digits)
	for _, c := range []struct {
		text                    string
		ok, whole, isGPU, isMIG bool
	}{
		{"GPU-" + digits, true, true, true, false},
		{"MIG-" + digits, true, true, false, true},
		{digits, true, true, true, false},
		{"GPU-5E1F0000-1234-5678-9ABC-DEF012345678", true, true, true, false},
		{"GPU-5e1f00001234", true, false, true, false},
		{"GPU-5e1f0000-12", true, false, true, false},
		{"MIG-5e1f", true, false, false, true},
		{"GPU-5e1f0001", true, false, false, false},
		{"MIG-GPU-" + digits + "/1/0", false, false, false, false},
		{"GPU-", false, false, false, false},
		{"", false, false, false, false},
		{"0", true, false, false, false},
		{"gpu0", false, false, false, false},
		{"GPU-" + digits + "0", false, false, false, false},
	} {
		u, ok := ParseUUID(c.text)
		if ok != c.ok || u.Whole() != c.whole || u.Is(gpu) != c.isGPU || u.Is(mig) != c.isMIG {
			t.Errorf("%q: ok %v, whole %v, is the GPU %v, is the instance %v", c.text, ok, u.Whole(), u.Is(gpu), u.Is(mig))
		}
	}
}

func FuzzParseUUID(f *testing.F) {
	for _, s := range []string{"GPU-5e1f0000-1234-5678-9abc-def012345678", "MIG-5e", "MIG-GPU-5e/1/0", "", "-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, ok := ParseUUID(s)
		if ok != (u.digits != "") || ok && !u.Is(u) || len(u.digits) > 32 {
			t.Errorf("%q is %+v, %v", s, u, ok)
		}
	})
}
