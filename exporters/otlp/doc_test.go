package otlp

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestAttributesAreDocumented: docs/traces.md has every attribute and event, whole
// or as the last part of one beside it.
func TestAttributesAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/traces.md")
	if err != nil {
		t.Fatal(err)
	}
	src, err := os.ReadFile("encode.go")
	if err != nil {
		t.Fatal(err)
	}
	keys := regexp.MustCompile(`(?:newKey\(|event\w+ += )"([^"]+)"`).FindAllStringSubmatch(string(src), -1)
	if len(keys) < 50 {
		t.Errorf("only %d keys found", len(keys))
	}
	for _, k := range keys {
		last := k[1][strings.LastIndexByte(k[1], '.'):]
		if !strings.Contains(string(doc), "`"+k[1]+"`") && !strings.Contains(string(doc), "`"+last+"`") {
			t.Errorf("docs/traces.md does not say what %s is", k[1])
		}
	}
}
