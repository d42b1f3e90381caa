package backend

import "fmt"

// DebugSyncEnv makes backends wait after every launch where it is 1.
const DebugSyncEnv = "LANETRACE_DEBUG_SYNC_KERNELS"

// DebugSync is what DebugSyncEnv says: 1, or 0 or nothing. Another value is an
// error.
func DebugSync(getenv func(string) string) (bool, error) {
	switch v := getenv(DebugSyncEnv); v {
	case "", "0":
		return false, nil
	case "1":
		return true, nil
	default:
		return false, fmt.Errorf("%s=%q: want 0 or 1", DebugSyncEnv, v)
	}
}
