package collector

import (
	"strconv"
	"strings"

	"github.com/ianlancetaylor/demangle"
)

// KernelLabel is what a kernel is called where its whole name is too much: a C++
// name demangled, without its return type, template arguments and parameters. All
// instantiations of a template so have one name. Of a name that is no C++ it is the
// name itself. text is clean; the result is not cut.
func KernelLabel(text string) string {
	if strings.HasPrefix(text, "_Z") {
		if s := demangled(text); s != "" {
			return s
		}
		return text
	}
	// Profilers and some engines give names that are demangled already.
	if strings.HasPrefix(text, "void ") || strings.Contains(text, "::") {
		if s := bareFunction(text); s != "" {
			return s
		}
	}
	return text
}

// maxDemangled is the power of two that bounds a demangled name: the back
// references of a short hostile one can stand for gigabytes.
const maxDemangled = 11

// demangled is "" for what is no mangled name.
func demangled(text string) (out string) {
	// The demangler recovers from what it knows; a name out of a ring must not end
	// the sidecar through what it does not.
	defer func() {
		if recover() != nil {
			out = ""
		}
	}()
	s, err := demangle.ToString(text, demangle.NoParams, demangle.NoTemplateParams, demangle.NoRust, demangle.MaxLength(maxDemangled))
	if err != nil {
		return mangledPrefix(text)
	}
	return bareFunction(CleanText(s))
}

// mangledPrefix reads the namespaces and the name of a function up to its template
// arguments, of a mangled name that was cut: a ring keeps 1 KiB of each.
func mangledPrefix(text string) string {
	rest, nested := strings.CutPrefix(text, "_ZN")
	if !nested {
		rest = strings.TrimPrefix(text, "_Z")
	}
	var parts []string
	for rest != "" && rest[0] >= '1' && rest[0] <= '9' {
		digits := 1
		for digits < len(rest) && digits < 4 && rest[digits] >= '0' && rest[digits] <= '9' {
			digits++
		}
		n, err := strconv.Atoi(rest[:digits])
		if rest = rest[digits:]; err != nil || n > len(rest) {
			return ""
		}
		part := rest[:n]
		if strings.HasPrefix(part, "_GLOBAL__N") {
			part = anonymous
		}
		parts, rest = append(parts, part), rest[n:]
		if !nested {
			break
		}
	}
	if len(parts) == 0 || !strings.HasPrefix(rest, "I") {
		return ""
	}
	return CleanText(strings.Join(parts, "::"))
}

const anonymous = "(anonymous namespace)"

// bareFunction takes return type, template arguments and parameters off a
// demangled name. It is "" when nothing is left or the brackets do not match.
func bareFunction(s string) string {
	var b strings.Builder
	angle, brace := 0, 0
	for i := 0; i < len(s); i++ {
		rest := s[i:]
		switch c := s[i]; {
		case brace > 0 || c == '{': // {lambda(int)#1} stays
			switch c {
			case '{':
				brace++
			case '}':
				brace--
			}
			if angle == 0 {
				b.WriteByte(c)
			}
		case strings.HasPrefix(rest, anonymous):
			if angle == 0 {
				b.WriteString(anonymous)
			}
			i += len(anonymous) - 1
		case angle == 0 && strings.HasPrefix(rest, "operator") && (i == 0 || s[i-1] == ':' || s[i-1] == ' '):
			// What follows is part of the name, up to the parameters.
			n := len("operator")
			for n < len(rest) && strings.IndexByte("<>=!+-*/%^&|~[],", rest[n]) >= 0 {
				n++
			}
			if strings.HasPrefix(rest[n:], "()") {
				n += 2
			}
			b.WriteString(rest[:n])
			i += n - 1
		case c == '<':
			angle++
		case c == '>':
			if i > 0 && s[i-1] == '-' { // an arrow inside of an argument
				continue
			}
			if angle--; angle < 0 {
				return ""
			}
		case angle > 0:
		case c == '(':
			return lastWord(b.String())
		default:
			b.WriteByte(c)
		}
	}
	if angle != 0 || brace != 0 {
		return ""
	}
	return lastWord(b.String())
}

// lastWord is what follows the return type.
func lastWord(s string) string {
	s = strings.TrimSpace(s)
	const mark = "\x00"
	s = strings.ReplaceAll(s, anonymous, mark)
	head := s // where a blank ends the return type
	for _, from := range []string{"operator", "{"} {
		if i := strings.Index(head, from); i >= 0 {
			head = head[:i]
		}
	}
	s = s[strings.LastIndexAny(head, " *&")+1:]
	return strings.ReplaceAll(s, mark, anonymous)
}
