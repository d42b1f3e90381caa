// SPDX-License-Identifier: Apache-2.0
//
// A ring's life as a file: its directory, its making, its lock, its end, and what
// a fork means for it.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ring_internal.h"

// Errors --------------------------------------------------------------------------------

void lt_error_set(lt_error *err, const char *format, ...) {
  if (err == NULL)
    return;
  va_list ap;
  va_start(ap, format);
  vsnprintf(err->text, sizeof err->text, format, ap);
  va_end(ap);
}

void lt_error_sys(lt_error *err, int errnum, const char *format, ...) {
  if (err == NULL)
    return;
  va_list ap;
  va_start(ap, format);
  vsnprintf(err->text, sizeof err->text, format, ap);
  va_end(ap);
  size_t n = strlen(err->text);
  char buf[128];
  snprintf(err->text + n, sizeof err->text - n, ": %s", strerror_r(errnum, buf, sizeof buf));
}

// Geometry ------------------------------------------------------------------------------

uint64_t lt_geometry_bytes(const lt_geometry *g) {
  return LT_HEADER_SIZE + g->log_entries * LT_ENTRY_SIZE + g->slots * LT_SLOT_SIZE + g->name_bytes + g->allocs * LT_ALLOC_SIZE;
}

static int check_geometry(const lt_geometry *g, lt_error *err) {
  unsigned long long v;
  if (v = g->log_entries, v < 64 || v > 1 << 24 || (v & (v - 1)) != 0)
    lt_error_set(err, "ring geometry: %llu log entries, need a power of two from 64 to %d", v, 1 << 24);
  else if (v = g->slots, v < 1 || v > 1 << 20)
    lt_error_set(err, "ring geometry: %llu slots, need from 1 to %d", v, 1 << 20);
  else if (v = g->name_bytes, v < 4096 || v > 256 << 20 || v % 64 != 0)
    lt_error_set(err, "ring geometry: %llu bytes of names, need a multiple of 64 from 4096 to %d", v, 256 << 20);
  else if (v = g->allocs, v < 1 || v > 1 << 20)
    lt_error_set(err, "ring geometry: %llu allocations, need from 1 to %d", v, 1 << 20);
  else if (v = lt_geometry_bytes(g), v > LT_MAX_FILE_BYTES)
    lt_error_set(err, "ring geometry: %llu bytes in all, at most %d", v, LT_MAX_FILE_BYTES);
  else
    return 0;
  return -1;
}

int lt_geometry_settle(lt_geometry *g, lt_error *err) {
  if (g->log_entries == 0)
    g->log_entries = LT_DEFAULT_LOG_ENTRIES;
  if (g->slots == 0)
    g->slots = LT_DEFAULT_SLOTS;
  if (g->name_bytes == 0)
    g->name_bytes = LT_DEFAULT_NAME_BYTES;
  if (g->allocs == 0)
    g->allocs = LT_DEFAULT_ALLOCS;
  return check_geometry(g, err);
}

int lt_geometry_for_bytes(int64_t total, lt_geometry *g, lt_error *err) {
  if (total < 64 << 10 || total > LT_MAX_FILE_BYTES) {
    lt_error_set(err, "ring geometry: %lld bytes, need from 65536 to %d", (long long)total, LT_MAX_FILE_BYTES);
    return -1;
  }
  g->log_entries = 1 << 24;
  while (g->log_entries > 64) {
    g->slots = g->log_entries / 4 > 16 ? g->log_entries / 4 : 16;
    g->allocs = g->slots;
    g->name_bytes = g->log_entries * 16 > 4096 ? g->log_entries * 16 : 4096;
    if (g->log_entries <= 1 << 22 && lt_geometry_bytes(g) <= (uint64_t)total)
      break;
    g->log_entries /= 2;
  }
  return check_geometry(g, err);
}

// The directory -------------------------------------------------------------------------

static mode_t dir_mode(const lt_config *c) { return c->group >= 0 ? 02770 : 0700; }
static mode_t file_mode(const lt_config *c) { return c->group >= 0 ? 0640 : 0600; }

// stat has no symbol as old as glibc 2.28 on newer systems, statx has.
static int look(const char *path, struct statx *st) { return statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, st); }

static int check_dir(const char *path, const lt_config *c, lt_error *err) {
  struct statx st;
  if (look(path, &st) != 0) {
    if (errno == ENOENT)
      lt_error_set(err, "ring directory does not exist: %s: create it or set LANETRACE_DIR", path);
    else
      lt_error_sys(err, errno, "ring directory %s", path);
    return -1;
  }
  unsigned perm = st.stx_mode & 07777, uid = (unsigned)getuid();
  if (S_ISLNK(st.stx_mode))
    lt_error_set(err, "ring directory refused: %s is a symbolic link: name the directory itself", path);
  else if (!S_ISDIR(st.stx_mode))
    lt_error_set(err, "ring directory refused: %s is not a directory", path);
  else if (st.stx_uid != uid && (c->group < 0 || st.stx_uid != 0))
    lt_error_set(err, "ring directory refused: %s belongs to user %u, not to user %u: set LANETRACE_DIR to a directory of your own", path,
                 st.stx_uid, uid);
  else if (c->group < 0 && (perm & 077) != 0)
    lt_error_set(err, "ring directory refused: %s has mode 0%o, want 0700: chmod 700 it, or set LANETRACE_GROUP to share it", path, perm);
  else if (c->group >= 0 && st.stx_gid != (uint32_t)c->group)
    lt_error_set(err, "ring directory refused: %s belongs to group %u, not to group %u: chgrp it, or set LANETRACE_GROUP", path,
                 st.stx_gid, (unsigned)c->group);
  else if (c->group >= 0 && (perm & 02077) != 02070)
    lt_error_set(err, "ring directory refused: %s has mode 0%o, want 02770: chmod 2770 it", path, perm);
  else
    return 0;
  return -1;
}

static void hex(char *dst, const uint8_t *b, size_t n) {
  for (size_t i = 0; i < n; i++) {
    dst[2 * i] = "0123456789abcdef"[b[i] >> 4];
    dst[2 * i + 1] = "0123456789abcdef"[b[i] & 15];
  }
  dst[2 * n] = 0;
}

static bool random_bytes(void *b, size_t n) {
  ssize_t got;
  while ((got = getrandom(b, n, 0)) < 0 && errno == EINTR) {
  }
  return got == (ssize_t)n;
}

// make_dir creates the directory: it appears with its final mode, also when several
// processes make it at once.
static int make_dir(const char *path, const lt_config *c, lt_error *err) {
  char tmp[sizeof c->dir + 64], tail[17];
  uint8_t rnd[8];
  const char *base = strrchr(path, '/') + 1;
  if (!random_bytes(rnd, sizeof rnd)) {
    lt_error_sys(err, errno, "make ring directory %s", path);
    return -1;
  }
  hex(tail, rnd, sizeof rnd);
  snprintf(tmp, sizeof tmp, "%.*s.%s.%s.tmp", (int)(base - path), path, base, tail);
  if (mkdir(tmp, 0700) != 0) {
    lt_error_sys(err, errno, "make ring directory %s", path);
    return -1;
  }
  int rc = 0;
  if (c->group >= 0 && chown(tmp, (uid_t)-1, (gid_t)c->group) != 0) {
    lt_error_sys(err, errno, "give ring directory %s to group %lld", path, (long long)c->group);
    rc = -1;
  } else if (chmod(tmp, dir_mode(c)) != 0) {
    lt_error_sys(err, errno, "set mode of ring directory %s", path);
    rc = -1;
  } else {
    int e = renameat2(AT_FDCWD, tmp, AT_FDCWD, path, RENAME_NOREPLACE) == 0 ? 0 : errno;
    // A file system that cannot refuse to replace: what could be is an empty
    // directory, by another one.
    if (e == EINVAL || e == ENOSYS)
      e = rename(tmp, path) == 0 ? 0 : errno;
    if (e == 0)
      return 0;
    if (e != EEXIST && e != ENOTEMPTY) {
      lt_error_sys(err, e, "make ring directory %s", path);
      rc = -1;
    }
  }
  rmdir(tmp);
  return rc;
}

// ring_dir copies the directory's path, made absolute, for the program may change
// its own, and without trailing slashes, behind which a link would be followed. Only
// our own default directory is made when it is missing.
static int ring_dir(char *path, size_t size, const lt_config *c, lt_error *err) {
  size_t n = 0;
  if (c->dir[0] != '/') {
    if (getcwd(path, size - 1) == NULL) {
      lt_error_sys(err, errno, "ring directory %s", c->dir);
      return -1;
    }
    n = strlen(path);
    path[n++] = '/';
  }
  if (n + strlen(c->dir) >= size) {
    lt_error_sys(err, ENAMETOOLONG, "ring directory %s", c->dir);
    return -1;
  }
  strcpy(path + n, c->dir);
  for (n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
    path[n - 1] = 0;
  struct statx st;
  if (!c->dir_named && look(path, &st) != 0 && errno == ENOENT && make_dir(path, c, err) != 0)
    return -1;
  return check_dir(path, c, err);
}

// Dead rings ----------------------------------------------------------------------------

static size_t hex_digits(const char *s) {
  size_t n = 0;
  while ((s[n] >= '0' && s[n] <= '9') || (s[n] >= 'a' && s[n] <= 'f'))
    n++;
  return n;
}

// after_ring returns what follows RUNID.ring, NULL for another name.
static const char *after_ring(const char *name) {
  const size_t n = sizeof LT_RING_SUFFIX - 1;
  return hex_digits(name) == 32 && strncmp(name + 32, LT_RING_SUFFIX, n) == 0 ? name + 32 + n : NULL;
}

// leftover says whether name is a temporary of a ring or control file, or a control
// file; then *ring_len is the length of its ring's name, of a temporary 0.
static bool leftover(const char *name, size_t *ring_len) {
  *ring_len = 0;
  const char *rest = after_ring(name + (name[0] == '.'));
  if (rest == NULL)
    return false;
  if (name[0] != '.') {
    *ring_len = (size_t)(rest - name);
    return strcmp(rest, LT_CONTROL_SUFFIX) == 0;
  }
  if (strncmp(rest, LT_CONTROL_SUFFIX ".", sizeof LT_CONTROL_SUFFIX) == 0) {
    rest += sizeof LT_CONTROL_SUFFIX;
    size_t digits = strspn(rest, "0123456789");
    if (digits == 0)
      return false;
    rest += digits;
  }
  return strcmp(rest, ".tmp") == 0;
}

// locked_file is 1 when a producer holds the file's lock, 0 when none does, -1 when
// that cannot be had.
static int locked_file(int dir, const char *name) {
  int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return -1;
  struct flock lk = {.l_type = F_RDLCK};
  int rc = fcntl(fd, F_OFD_GETLK, &lk) != 0 ? -1 : lk.l_type != F_UNLCK;
  close(fd);
  return rc;
}

struct dead {
  struct statx_timestamp at;
  char name[32 + sizeof LT_RING_SUFFIX];
};

static int by_age(const void *a, const void *b) {
  const struct dead *x = a, *y = b;
  if (x->at.tv_sec != y->at.tv_sec)
    return x->at.tv_sec < y->at.tv_sec ? -1 : 1;
  if (x->at.tv_nsec != y->at.tv_nsec)
    return x->at.tv_nsec < y->at.tv_nsec ? -1 : 1;
  return strcmp(x->name, y->name);
}

// remove_dead removes dead rings beyond the newest few, their control files, and
// what creations and requests that failed half-way left behind. What cannot be
// removed stays.
static void remove_dead(const char *path) {
  DIR *d = opendir(path);
  if (d == NULL)
    return;
  struct dead *dead = NULL;
  size_t n = 0, room = 0;
  time_t now = time(NULL);
  int dir = dirfd(d);
  for (struct dirent *e; (e = readdir(d)) != NULL;) {
    const char *rest = after_ring(e->d_name);
    bool ring = rest != NULL && *rest == 0;
    size_t ring_len;
    struct statx st;
    if ((!ring && !leftover(e->d_name, &ring_len)) || statx(dir, e->d_name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &st) != 0 ||
        !S_ISREG(st.stx_mode))
      continue;
    if (!ring) {
      if (now - st.stx_mtime.tv_sec < LT_STALE_TEMPORARY_S)
        continue;
      if (ring_len > 0) {
        char name[sizeof dead->name];
        memcpy(name, e->d_name, ring_len);
        name[ring_len] = 0;
        if (statx(dir, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &st) == 0 || errno != ENOENT)
          continue;
      }
      if (locked_file(dir, e->d_name) == 0)
        unlinkat(dir, e->d_name, 0);
      continue;
    }
    if (locked_file(dir, e->d_name) != 0)
      continue;
    if (n == room) {
      struct dead *more = realloc(dead, (room = 2 * room + 16) * sizeof *dead);
      if (more == NULL)
        break;
      dead = more;
    }
    dead[n].at = st.stx_mtime;
    strcpy(dead[n++].name, e->d_name);
  }
  if (n > 1)
    qsort(dead, n, sizeof *dead, by_age);
  for (size_t i = 0; i + LT_KEEP_DEAD < n; i++) {
    char control[sizeof dead->name + sizeof LT_CONTROL_SUFFIX];
    snprintf(control, sizeof control, "%s" LT_CONTROL_SUFFIX, dead[i].name);
    unlinkat(dir, dead[i].name, 0);
    unlinkat(dir, control, 0);
  }
  free(dead);
  closedir(d);
}

// Who and when we are ---------------------------------------------------------------------

// start_ticks is field 22 of /proc/self/stat, 0 where there is none. The second
// field, the command's name in parentheses, may itself hold blanks and ")".
static uint64_t start_ticks(void) {
  char b[2048];
  int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return 0;
  ssize_t n = read(fd, b, sizeof b - 1);
  close(fd);
  if (n <= 0)
    return 0;
  b[n] = 0;
  char *p = strrchr(b, ')'), *save = NULL;
  if (p == NULL)
    return 0;
  p = strtok_r(p + 1, " \n", &save);
  for (int i = 0; i < 19 && p != NULL; i++)
    p = strtok_r(NULL, " \n", &save);
  uint64_t v = 0;
  return p != NULL && lt_parse_u64(p, UINT64_MAX, &v) ? v : 0;
}

static void write_header(lt_ring *r, const lt_config *c, const lt_ring_options *o) {
  struct timespec wall;
  struct statx st;
  char exe[4096];
  const char *base = o->executable;
  if (base == NULL || *base == 0) {
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n < 0 ? 0 : n] = 0;
    char *gone = strstr(exe, " (deleted)");
    if (gone != NULL && gone[sizeof " (deleted)" - 1] == 0)
      *gone = 0;
    base = strrchr(exe, '/') == NULL ? exe : strrchr(exe, '/') + 1;
  }
  lt_store(r, LT_OFF_VERSION, LT_LAYOUT_VERSION | (uint64_t)LT_HEADER_SIZE << 32);
  lt_store(r, LT_OFF_FILE_BYTES, r->bytes);
  lt_store(r, LT_OFF_LOG_OFF, LT_HEADER_SIZE);
  lt_store(r, LT_OFF_LOG_ENTRIES, r->geo.log_entries);
  lt_store(r, LT_OFF_SLOT_OFF, r->slot_off);
  lt_store(r, LT_OFF_SLOT_COUNT, r->geo.slots);
  lt_store(r, LT_OFF_NAME_OFF, r->name_off);
  lt_store(r, LT_OFF_NAME_BYTES, r->geo.name_bytes);
  lt_store(r, LT_OFF_ALLOC_OFF, r->alloc_off);
  lt_store(r, LT_OFF_ALLOC_COUNT, r->geo.allocs);
  lt_store_bytes(r, LT_OFF_RUN_ID, 16, r->run_id, 16);
  lt_store(r, LT_OFF_PID, (uint32_t)getpid());
  lt_store(r, LT_OFF_PID_NS, statx(AT_FDCWD, "/proc/self/ns/pid", 0, STATX_BASIC_STATS, &st) == 0 ? st.stx_ino : 0);
  lt_store(r, LT_OFF_START_TICKS, start_ticks());
  lt_store(r, LT_OFF_MADE_MONO_NS, (uint64_t)lt_mono_ns());
  clock_gettime(CLOCK_REALTIME, &wall);
  lt_store(r, LT_OFF_MADE_UNIX_NS, (uint64_t)wall.tv_sec * 1000000000 + (uint64_t)wall.tv_nsec);
  lt_store_text(r, LT_OFF_EXE, LT_EXE_BYTES, base);
  lt_store_text(r, LT_OFF_SERVICE, LT_SERVICE_BYTES, c->service);
  lt_ring_set_gpu(r, o->gpu_uuid, o->gpu_name);
  lt_store(r, LT_OFF_RANK, (uint32_t)c->rank[0] | (uint64_t)(uint32_t)c->rank[1] << 32);
  lt_store(r, LT_OFF_RANK + 8, (uint32_t)c->rank[2] | (uint64_t)(uint32_t)c->rank[3] << 32);
  lt_store_text(r, LT_OFF_PRODUCER, LT_PRODUCER_BYTES, o->producer);
  lt_store(r, LT_OFF_STATE, (uint8_t)c->level);
  lt_ring_set_arming(r, o->kernel_every, o->armed_requested);
  if (c->model[0] != 0)
    lt_store(r, LT_OFF_MODEL, lt_ring_name_z(r, LT_NAME_OTHER, c->model));
  lt_store(r, LT_OFF_MAGIC, LT_MAGIC);
}

// Fork ------------------------------------------------------------------------------------

// The rings of this process, closed ones too, for the handlers of fork. The lock is held while one is
// made, so that no fork copies a descriptor that its handler does not know.
static pthread_mutex_t rings_mu = PTHREAD_MUTEX_INITIALIZER;
static lt_ring *rings;
static bool handlers;

// holds: the descriptor still is the ring's. Programs close all that they do not know,
// and then the number is another file's.
static bool holds(const lt_ring *r, int fd) {
  struct statx st;
  return fd >= 0 && statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st) == 0 && st.stx_ino == r->inode &&
         st.stx_dev_major == r->dev[0] && st.stx_dev_minor == r->dev[1];
}

static void before_fork(void) { pthread_mutex_lock(&rings_mu); }
static void after_fork_parent(void) { pthread_mutex_unlock(&rings_mu); }

// after_fork_child gives the lock back to the parent alone: the child's descriptor
// goes. Its mapping is gone already; in its place comes memory of the child's own,
// so that what a thread still holds of the ring can be written without harm.
static void after_fork_child(void) {
  for (lt_ring *r = rings; r != NULL; r = r->next) {
    if (atomic_exchange(&r->theirs, true))
      continue;
    int fd = atomic_exchange(&r->fd, -1);
    if (holds(r, fd))
      close(fd);
    const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *p = mmap(r->base, r->bytes, prot, flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (p == MAP_FAILED)
      p = mmap(NULL, r->bytes, prot, flags, -1, 0);
    if (p != MAP_FAILED)
      r->base = p;
    pthread_mutex_init(&r->names_mu, NULL);
    pthread_mutex_init(&r->contexts_mu, NULL);
    pthread_mutex_init(&r->allocs_mu, NULL);
    r->allocs_used = r->allocs_free = 0;
  }
  rings = NULL;
  pthread_mutex_unlock(&rings_mu);
}

// Making ------------------------------------------------------------------------------------

// above_standard moves a descriptor out of the place of a standard stream that the
// program has closed: it would write there.
static int above_standard(int fd) {
  if (fd < 0 || fd > STDERR_FILENO)
    return fd;
  const int up = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), e = errno;
  close(fd);
  errno = e;
  return up;
}

// reserve allocates the whole file. A signal makes tmpfs undo the whole of the call
// that it meets, so each call asks for little.
static int reserve(int fd, uint64_t size) {
  const uint64_t step = 1 << 20;
  struct rlimit most;
  // Beyond the limit on file sizes comes a signal that ends the program.
  if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < size)
    return EFBIG;
  for (uint64_t off = 0; off < size;) {
    uint64_t n = size - off < step ? size - off : step;
    if (fallocate(fd, 0, (off_t)off, (off_t)n) == 0)
      off += n;
    else if (errno != EINTR)
      return errno;
  }
  return 0;
}

static int fill(int fd, lt_ring *r, const char *dir, const char *tmp, const lt_config *c, const lt_ring_options *o, lt_error *err) {
  // The lock comes before anything else, so that no other starting producer takes
  // the temporary for a leftover.
  struct flock lk = {.l_type = F_WRLCK};
  struct statx st;
  int e;
  if (fcntl(fd, F_OFD_SETLK, &lk) != 0) {
    lt_error_sys(err, errno, "lock ring %s", tmp);
    return -1;
  }
  if (statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st) != 0) {
    lt_error_sys(err, errno, "look at ring %s", tmp);
    return -1;
  }
  r->inode = st.stx_ino;
  r->dev[0] = st.stx_dev_major;
  r->dev[1] = st.stx_dev_minor;
  // umask may have taken bits away.
  if (fchmod(fd, file_mode(c)) != 0) {
    lt_error_sys(err, errno, "set mode of ring %s", tmp);
    return -1;
  }
  if (c->group >= 0 && fchown(fd, (uid_t)-1, (gid_t)c->group) != 0) {
    lt_error_sys(err, errno, "give ring %s to group %lld", tmp, (long long)c->group);
    return -1;
  }
  if ((e = reserve(fd, r->bytes)) != 0) {
    lt_error_sys(err, e, "reserve %llu bytes for ring in %s", (unsigned long long)r->bytes, dir);
    return -1;
  }
  void *p = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (p == MAP_FAILED) {
    lt_error_sys(err, errno, "map ring %s", tmp);
    return -1;
  }
  if (madvise(p, r->bytes, MADV_DONTFORK) != 0) {
    lt_error_sys(err, errno, "keep ring %s from children", tmp);
    munmap(p, r->bytes);
    return -1;
  }
  r->base = p;
  write_header(r, c, o);
  if (rename(tmp, r->path) != 0) {
    lt_error_sys(err, errno, "put ring in place as %s", r->path);
    munmap(p, r->bytes);
    return -1;
  }
  return 0;
}

static void *pages(uint64_t n) {
  void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

static uint64_t name_cells(const lt_geometry *g) {
  uint64_t n = 64;
  while (n < 2 * (g->name_bytes / LT_NAME_ALIGN))
    n *= 2;
  return n;
}

static void discard(lt_ring *r) {
  if (r->name_ids != NULL)
    munmap((void *)r->name_ids, (r->name_mask + 1) * sizeof *r->name_ids);
  if (r->allocs_unused != NULL)
    munmap(r->allocs_unused, r->geo.allocs * sizeof *r->allocs_unused);
  free(r);
}

static lt_ring *new_ring(const lt_geometry *g, const char *dir, lt_error *err) {
  size_t path_size = strlen(dir) + 1 + 32 + sizeof LT_RING_SUFFIX;
  lt_ring *r = calloc(1, sizeof *r + path_size);
  if (r == NULL) {
    lt_error_sys(err, errno, "make ring in %s", dir);
    return NULL;
  }
  r->geo = *g;
  r->mask = g->log_entries - 1;
  r->slot_off = LT_HEADER_SIZE + g->log_entries * LT_ENTRY_SIZE;
  r->name_off = r->slot_off + g->slots * LT_SLOT_SIZE;
  r->alloc_off = r->name_off + g->name_bytes;
  r->bytes = lt_geometry_bytes(g);
  r->name_mask = name_cells(g) - 1;
  r->name_ids = pages((r->name_mask + 1) * sizeof *r->name_ids);
  r->allocs_unused = pages(g->allocs * sizeof *r->allocs_unused);
  pthread_mutex_init(&r->names_mu, NULL);
  pthread_mutex_init(&r->contexts_mu, NULL);
  pthread_mutex_init(&r->allocs_mu, NULL);
  if (r->name_ids == NULL || r->allocs_unused == NULL || !random_bytes(r->run_id, sizeof r->run_id)) {
    lt_error_sys(err, errno, "make ring in %s", dir);
    discard(r);
    return NULL;
  }
  r->path = (char *)(r + 1);
  char id[33];
  hex(id, r->run_id, 16);
  snprintf(r->path, path_size, "%s/%s" LT_RING_SUFFIX, dir, id);
  return r;
}

lt_ring *lt_ring_create(const lt_config *c, const lt_ring_options *o, lt_error *err) {
  static const lt_ring_options none;
  if (o == NULL)
    o = &none;
  lt_geometry g = o->geometry;
  lt_error ignored;
  if (err == NULL)
    err = &ignored;
  err->text[0] = 0;
  if (g.log_entries == 0 && g.slots == 0 && g.name_bytes == 0 && g.allocs == 0 && c->ring_bytes != 0 &&
      lt_geometry_for_bytes(c->ring_bytes, &g, err) != 0)
    return NULL;
  char dir[sizeof c->dir];
  if (lt_geometry_settle(&g, err) != 0 || ring_dir(dir, sizeof dir, c, err) != 0)
    return NULL;
  remove_dead(dir);
  lt_ring *r = new_ring(&g, dir, err);
  if (r == NULL)
    return NULL;
  char tmp[sizeof dir + 64];
  snprintf(tmp, sizeof tmp, "%s/.%s.tmp", dir, strrchr(r->path, '/') + 1);

  pthread_mutex_lock(&rings_mu);
  if (!handlers) {
    int e = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    if (e != 0) {
      lt_error_sys(err, e, "keep rings from children");
      pthread_mutex_unlock(&rings_mu);
      discard(r);
      return NULL;
    }
    handlers = true;
  }
  int fd = above_standard(open(tmp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, file_mode(c)));
  if (fd < 0) {
    const int e = errno;
    unlink(tmp);
    lt_error_sys(err, e, "make ring in %s", dir);
  } else if (fill(fd, r, dir, tmp, c, o, err) != 0) {
    unlink(tmp);
    close(fd);
    fd = -1;
  }
  if (fd >= 0) {
    atomic_store(&r->fd, fd);
    r->next = rings;
    rings = r;
  }
  pthread_mutex_unlock(&rings_mu);
  if (fd < 0) {
    discard(r);
    return NULL;
  }
  return r;
}

// The end ------------------------------------------------------------------------------------

int lt_ring_close(lt_ring *r, lt_error *err) {
  if (err != NULL)
    err->text[0] = 0;
  if (r == NULL)
    return 0;
  pthread_mutex_lock(&rings_mu);
  int fd = atomic_exchange(&r->fd, -1);
  int rc = 0;
  if (fd >= 0) {
    atomic_fetch_or(lt_word(r, LT_OFF_STATE), LT_STATE_CLEAN);
    // The mapping stays for late writers. But it holds the open file description,
    // and with it the lock, so that goes first.
    struct flock lk = {.l_type = F_UNLCK};
    if (holds(r, fd) && (fcntl(fd, F_OFD_SETLK, &lk) != 0 || close(fd) != 0)) {
      lt_error_sys(err, errno, "close ring %s", r->path);
      rc = -1;
    }
  }
  pthread_mutex_unlock(&rings_mu);
  return rc;
}

int lt_ring_remove(lt_ring *r, lt_error *err) {
  int rc = lt_ring_close(r, err);
  if (r == NULL || atomic_load(&r->theirs))
    return rc;
  char control[4096 + 128];
  snprintf(control, sizeof control, "%s" LT_CONTROL_SUFFIX, r->path);
  const char *const files[] = {r->path, control};
  for (int i = 0; i < 2; i++)
    if (unlink(files[i]) != 0 && errno != ENOENT && rc == 0) {
      lt_error_sys(err, errno, "remove %s", files[i]);
      rc = -1;
    }
  return rc;
}

bool lt_ring_ours(const lt_ring *r) { return r != NULL && !atomic_load(&r->theirs) && atomic_load(&r->fd) >= 0; }
const char *lt_ring_path(const lt_ring *r) { return r == NULL ? "" : r->path; }
int lt_ring_fd(const lt_ring *r) { return r == NULL ? -1 : atomic_load(&r->fd); }
lt_geometry lt_ring_geometry(const lt_ring *r) { return r == NULL ? (lt_geometry){0} : r->geo; }
const uint8_t *lt_ring_run_id(const lt_ring *r) { return r == NULL ? NULL : r->run_id; }
