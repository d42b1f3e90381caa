//go:build cgo

// Package raw does what the backend never would, for tests of it: it forks as C
// programs do, and sets contexts and capture modes for a thread.
package raw

/*
#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

// -1: no fork. Nothing but what is safe after a fork happens in the child.
static int child_has(int fd) {
  pid_t pid = fork();
  if (pid < 0)
    return -1;
  if (pid == 0)
    _exit(fcntl(fd, F_GETFD) >= 0 ? 10 : 11);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0)
    if (errno != EINTR)
      return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
*/
import "C" //nolint:depguard // only tests use this; the C is its purpose

import "fmt"

// ChildHas reports whether a child made by fork() has descriptor fd open.
func ChildHas(fd int) (bool, error) {
	switch r, err := C.child_has(C.int(fd)); r {
	case 10:
		return true, nil
	case 11:
		return false, nil
	default:
		return false, fmt.Errorf("fork: %d, %w", r, err)
	}
}
