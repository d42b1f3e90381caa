package otlp

import "google.golang.org/protobuf/reflect/protoreflect"

// unknown counts the bytes in m and the messages in it that are no known fields.
func unknown(m protoreflect.Message) int {
	n := len(m.GetUnknown())
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				n += unknown(v.List().Get(i).Message())
			}
		default:
			n += unknown(v.Message())
		}
		return true
	})
	return n
}
