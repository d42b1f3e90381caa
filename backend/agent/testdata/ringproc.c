// SPDX-License-Identifier: Apache-2.0
//
// A producer over the ring's writer, in the part that its first argument names. It
// says its lines on standard output and ends when its standard input does.
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "entry.h"
#include "hub.h"
#include "ledger.h"
#include "ring_internal.h"

static lt_ring *ring;
static unsigned per_thread;

static void say(const char *line) {
  puts(line);
  fflush(stdout);
}

static void await_end(void) {
  char b[64];
  while (read(0, b, sizeof b) > 0) {
  }
}

static lt_ring *make(void) {
  lt_config *c = malloc(sizeof *c);
  lt_error err;
  if (lt_config_from_env(c, getenv, &err) != 0) {
    fprintf(stderr, "%s\n", err.text);
    exit(1);
  }
  lt_ring_options o = {.producer = "ringproc"};
  lt_ring *r = lt_ring_create(c, &o, &err);
  if (r == NULL) {
    fprintf(stderr, "%s\n", err.text);
    exit(1);
  }
  free(c);
  say(lt_ring_path(r));
  return r;
}

// An entry whose words a reader can check against one another.
static lt_words sealed(unsigned thread, unsigned i) {
  lt_step_attrs_entry a = {.step = (uint64_t)(thread + 1) << 32 | i, .batch_size = i, .decode_tokens = i ^ 0x5a5a5a5a, .prefill_tokens = thread, .graph_mode = i % 4};
  return lt_step_attrs_words(&a);
}

static lt_ledger *memory;

static void *work(void *arg) {
  unsigned thread = (unsigned)(uintptr_t)arg;
  for (unsigned i = 0; per_thread == 0 || i < per_thread; i++) {
    lt_words e = sealed(thread, i);
    lt_ring_append(ring, &e);
    lt_ring_add(ring, LT_CTR_LAUNCHES, 1);
    if (i % 64 == 0) {
      char name[32];
      snprintf(name, sizeof name, "kernel %u", i / 64 % 100);
      lt_name_id id = lt_ring_name_z(ring, LT_NAME_KERNEL, name);
      uint64_t addr = (uint64_t)(thread + 1) << 32 | (i + 1);
      lt_mem_alloc(memory, 0, LT_ALLOC_DEVICE, LT_MEM_PLAIN, addr, 512, id);
      if (i % 128 == 0) {
        lt_mem_taken t;
        lt_mem_take(memory, addr, &t);
        lt_mem_freed(memory, &t, false);
      }
      lt_ring_set_arming(ring, thread, i);
      lt_ring_set_level(ring, (int)(i / 64 % 4));
    }
    if (i % 1024 == 1 && thread == 0)
      lt_ledger_set_publishing(memory, i / 1024 % 2 == 0);
  }
  return NULL;
}

static void threads(unsigned n) {
  pthread_t t[64];
  memory = lt_ledger_new(0);
  lt_ledger_attach(memory, ring, true);
  for (unsigned i = 0; i < n; i++)
    pthread_create(&t[i], NULL, work, (void *)(uintptr_t)i);
  for (unsigned i = 0; i < n; i++)
    pthread_join(t[i], NULL);
  lt_ledger_set_publishing(memory, true);
}

static int part_write(void) {
  ring = make();
  threads(8);
  say("written");
  await_end();
  lt_error err;
  return lt_ring_close(ring, &err) != 0;
}

// Everything that can be called on a ring, as a late thread would in a child.
static void use(void) {
  lt_words e = sealed(99, 1);
  lt_ring_append(ring, &e);
  lt_ring_add(ring, LT_CTR_MISUSE, 1000);
  lt_ring_name_z(ring, LT_NAME_LANE, "of the child");
  lt_ring_set_level(ring, 1);
  lt_ring_set_gpu(ring, "GPU-child", "child");
  lt_mem_alloc(memory, 0, LT_ALLOC_DEVICE, LT_MEM_PLAIN, 77, 1 << 20, 0);
  lt_mem_alloc_failed(memory);
  lt_allocs_lock(ring);
  lt_alloc a = {.addr = 5, .bytes = 5, .kind = 1};
  lt_allocs_remove(ring, lt_allocs_put(ring, &a));
  lt_allocs_unlock(ring);
  lt_context_state c = {0};
  lt_slots s;
  lt_error err;
  if (lt_ring_new_context(ring, &c, 4, &s, &err) == 0)
    lt_slot_store(s, 0, 1);
  lt_ring_close(ring, &err);
  lt_ring_remove(ring, &err);
}

// The child of a producer outlives it.
static int part_fork(void) {
  ring = make();
  per_thread = 100;
  threads(2);
  int to_parent[2];
  if (pipe(to_parent) != 0)
    return 1;
  pid_t child = fork();
  if (child == 0) {
    bool ours = lt_ring_ours(ring);
    use();
    char ok = !ours && lt_ring_fd(ring) == -1;
    if (write(to_parent[1], &ok, 1) != 1)
      _exit(1);
    alarm(60);
    pause();
    _exit(0);
  }
  char ok = 0;
  if (read(to_parent[0], &ok, 1) != 1 || !ok || !lt_ring_ours(ring))
    return 1;
  // A child that was given a ring of its own, from the same parent.
  pid_t second = fork();
  if (second == 0) {
    lt_ring *own = make();
    lt_error err;
    _exit(own == NULL || !lt_ring_ours(own) || lt_ring_ours(ring) || lt_ring_close(own, &err) != 0);
  }
  int status = 1;
  if (waitpid(second, &status, 0) != second || status != 0)
    return 1;
  printf("child %d\n", (int)child);
  say("forked");
  char b;
  if (read(0, &b, 1) != 1)
    return 1;
  _exit(0); // without closing the ring
}

// Threads that fork while others write.
static void *forker(void *arg) {
  (void)arg;
  for (int i = 0; i < 50; i++) {
    pid_t child = fork();
    if (child == 0) {
      use();
      _exit(0);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
      return (void *)1;
  }
  return NULL;
}

static int part_forkstorm(void) {
  ring = make();
  per_thread = 20000;
  memory = lt_ledger_new(0);
  lt_ledger_attach(memory, ring, true);
  pthread_t t[4], f[2];
  void *failed[2] = {0};
  for (unsigned i = 0; i < 4; i++)
    pthread_create(&t[i], NULL, work, (void *)(uintptr_t)i);
  for (unsigned i = 0; i < 2; i++)
    pthread_create(&f[i], NULL, forker, NULL);
  for (unsigned i = 0; i < 2; i++)
    pthread_join(f[i], &failed[i]);
  for (unsigned i = 0; i < 4; i++)
    pthread_join(t[i], NULL);
  say("written");
  await_end();
  lt_error err;
  return failed[0] != NULL || failed[1] != NULL || lt_ring_close(ring, &err) != 0;
}

static int part_config(void) {
  static lt_config c;
  lt_error err = {""};
  if (lt_config_from_env(&c, getenv, &err) != 0) {
    printf("error %s\n", err.text);
    return 0;
  }
  printf("%s %s %d %" PRId64 " %s %s %" PRId64 " %u %u %.9g %.9g %d %d %d %d\n", lt_level_text(c.level), c.dir, c.dir_named, c.group, c.service, c.model, c.ring_bytes, c.pairs, c.kernel_every, c.kernel_budget, c.lane_budget, c.rank[0], c.rank[1], c.rank[2], c.rank[3]);
  return 0;
}

// Reads a control file's text from standard input, behind each its length.
static int part_control(void) {
  static char b[1 << 16];
  unsigned n;
  while (fread(&n, sizeof n, 1, stdin) == 1) {
    // At the end of a page that can be read, so that reading on would be seen.
    char *pages = mmap(NULL, sizeof b + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (n > sizeof b || pages == MAP_FAILED || mprotect(pages + sizeof b, 4096, PROT_NONE) != 0)
      return 1;
    char *text = pages + sizeof b - n;
    if (n > 0 && fread(text, 1, n, stdin) != n)
      return 1;
    static lt_control c;
    lt_error err = {""};
    int rc = lt_control_parse(text, n, &c, &err);
    if (rc == LT_CONTROL_READ) {
      printf("read %u ", c.arm_steps);
      for (const char *p = c.level; *p != 0; p++)
        printf("%02x", (unsigned char)*p);
      printf(" ");
      for (const char *p = c.id; *p != 0; p++)
        printf("%02x", (unsigned char)*p);
      printf("\n");
    } else {
      printf("bad %s\n", err.text);
    }
    munmap(pages, sizeof b + 4096);
  }
  fflush(stdout);
  return 0;
}

// Reads the control file each time a byte comes in.
static int part_poll(void) {
  ring = make();
  char b;
  static lt_control c;
  while (read(0, &b, 1) == 1) {
    lt_error err = {""};
    int rc = lt_control_read(ring, &c, &err);
    if (rc == LT_CONTROL_NONE)
      say("none");
    else if (rc == LT_CONTROL_BAD)
      say(err.text);
    else
      printf("%s %s %u\n", c.id, c.level, c.arm_steps), fflush(stdout);
  }
  lt_error err;
  return lt_ring_remove(ring, &err) != 0;
}

// What the calls on a server's path cost, in ns, one line each.
static void cost(const char *what, int64_t start_mono_ns, unsigned n) {
  printf("%s %.1f\n", what, (double)(lt_mono_ns() - start_mono_ns) / n);
}

static int part_bench(void) {
  int64_t at = lt_mono_ns();
  ring = make();
  cost("create", at, 1);
  memory = lt_ledger_new(0);
  lt_ledger_attach(memory, ring, true);
  const unsigned n = 1000000;
  lt_words e = sealed(0, 0);
  for (unsigned i = 0; i < n / 10; i++)
    lt_ring_append(ring, &e);
  at = lt_mono_ns();
  for (unsigned i = 0; i < n; i++)
    lt_ring_append(ring, &e);
  cost("append", at, n);
  at = lt_mono_ns();
  for (unsigned i = 0; i < n; i++)
    lt_ring_add(ring, LT_CTR_LAUNCHES, 1);
  cost("count", at, n);
  char name[100];
  memset(name, 'n', sizeof name);
  lt_ring_name(ring, LT_NAME_KERNEL, name, sizeof name);
  at = lt_mono_ns();
  for (unsigned i = 0; i < n; i++)
    lt_ring_name(ring, LT_NAME_KERNEL, name, sizeof name);
  cost("name", at, n);
  // As an allocator holds thousands of segments.
  for (uint64_t i = 1; i <= 5000; i++)
    lt_mem_alloc(memory, 0, LT_ALLOC_DEVICE, LT_MEM_PLAIN, i << 21, 2 << 20, 1);
  lt_mem_taken t;
  at = lt_mono_ns();
  for (uint64_t i = 0; i < n; i++) {
    lt_mem_alloc(memory, 0, LT_ALLOC_DEVICE, LT_MEM_PLAIN, (i % 1000 + 6000) << 21, 2 << 20, 1);
    lt_mem_take(memory, (i % 1000 + 6000) << 21, &t);
    lt_mem_freed(memory, &t, false);
  }
  cost("alloc+free", at, n);
  lt_error err;
  return lt_ring_remove(ring, &err);
}

// A writer that takes a sequence number and gives it up.
static int part_gap(void) {
  ring = make();
  for (unsigned i = 0; i < 6; i++) {
    lt_words e = sealed(0, i);
    if (i == 3)
      atomic_fetch_add(lt_word(ring, LT_OFF_HEAD), 1);
    lt_ring_append(ring, &e);
  }
  say("written");
  await_end();
  lt_error err;
  return lt_ring_close(ring, &err);
}

static int part_close(void) {
  ring = make();
  lt_error err;
  return lt_ring_close(ring, &err);
}

int main(int argc, char **argv) {
  const char *part = argc > 1 ? argv[1] : "";
  if (argc > 2)
    per_thread = (unsigned)strtoul(argv[2], NULL, 10);
  if (strcmp(part, "write") == 0)
    return part_write();
  if (strcmp(part, "fork") == 0)
    return part_fork();
  if (strcmp(part, "forkstorm") == 0)
    return part_forkstorm();
  if (strcmp(part, "config") == 0)
    return part_config();
  if (strcmp(part, "control") == 0)
    return part_control();
  if (strcmp(part, "poll") == 0)
    return part_poll();
  if (strcmp(part, "bench") == 0)
    return part_bench();
  if (strcmp(part, "gap") == 0)
    return part_gap();
  if (strcmp(part, "close") == 0)
    return part_close();
  return 2;
}
