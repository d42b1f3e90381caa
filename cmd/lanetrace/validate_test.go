package main

import (
	"reflect"
	"slices"
	"testing"
)

// TestGroupsAreValidated: what a group of flags checks as a whole reaches the command
// that embeds it. Go promotes no method that two embedded structs have, and says
// nothing.
func TestGroupsAreValidated(t *testing.T) {
	type validates interface{ Validate() error }
	var groups func(t reflect.Type) []reflect.Type
	groups = func(t reflect.Type) (out []reflect.Type) {
		for i := range t.NumField() {
			if f := t.Field(i); f.Anonymous && f.Type.Kind() == reflect.Struct {
				out = append(append(out, f.Type), groups(f.Type)...)
			}
		}
		return out
	}
	isValidated := func(g reflect.Type) bool {
		_, ok := reflect.New(g).Interface().(validates)
		return ok
	}
	all := reflect.TypeFor[cli]()
	for i := range all.NumField() {
		c := all.Field(i)
		var of []string
		for _, g := range groups(c.Type) {
			// One that embeds another has that one's.
			if isValidated(g) && !slices.ContainsFunc(groups(g), isValidated) {
				of = append(of, g.Name())
			}
		}
		if len(of) > 1 || len(of) == 1 && !isValidated(c.Type) {
			t.Errorf("%s: Validate of %v is not called for certain", c.Name, of)
		}
	}
}
