// SPDX-License-Identifier: Apache-2.0

package testdriver

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// glibcSynchronises names what the thread sanitizer takes for a race: glibc frees the
// thread-locals of a thread that was joined when the stack that it keeps of it has to
// make room, which may be at the end of any other thread. The lock that orders this is
// glibc's own, which the sanitizer does not see.
const glibcSynchronises = "race:_dl_deallocate_tls\n"

// TSan is the environment entry with the thread sanitizer's options, separated by
// blanks, for programs built with -fsanitize=thread: these, and that it takes glibc for
// right.
func TSan(tb testing.TB, options string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "tsan")
	if err := os.WriteFile(path, []byte(glibcSynchronises), 0o600); err != nil {
		tb.Fatal(err)
	}
	return fmt.Sprintf("TSAN_OPTIONS=%s suppressions='%s'", options, path)
}
