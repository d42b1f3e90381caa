// SPDX-License-Identifier: Apache-2.0
#include "steps.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "agent.h"
#include "ring.h"
#include "say.h"

// Patterns -------------------------------------------------------------------------------

// match compares with a pattern of n bytes; *from and *to are what its first * stood for.
static bool match(const char *p, size_t n, const char *t, size_t m, size_t *from, size_t *to) {
  size_t i = 0, j = 0, star = SIZE_MAX, back = 0;
  unsigned stars = 0;
  *from = *to = 0;
  while (j < m) {
    if (i < n && p[i] == '*') {
      star = i++;
      back = j;
      if (++stars == 1)
        *from = *to = j;
    } else if (i < n && p[i] == t[j]) {
      i++;
      j++;
    } else if (star != SIZE_MAX) {
      // The latest * takes one byte more.
      i = star + 1;
      j = ++back;
      if (stars == 1)
        *to = back;
    } else {
      return false;
    }
  }
  for (; i < n && p[i] == '*'; i++)
    if (++stars == 1)
      *from = *to = m;
  return i == n;
}

bool lt_pattern_matches(const char *pattern, const char *text, size_t bytes) {
  size_t from, to;
  return match(pattern, strlen(pattern), text, bytes, &from, &to);
}

// Settings ---------------------------------------------------------------------------------

enum { RULES = 64, LABEL_BYTES = 128 };

struct text {
  const char *at;
  size_t n;
};
struct step_rule {
  struct text first, last; // last is empty for a range that is a step itself
};
struct lane_rule {
  struct text pattern, name;
};
struct rules {
  struct step_rule step[RULES];
  struct lane_rule lane[RULES];
  unsigned steps, lanes;
};

// MODE_ENGINE is MODE_RANGES by a known engine's rules: whether it has the scopes that
// they are about depends on its version.
enum mode { MODE_RANGES, MODE_ENGINE, MODE_GRAPH, MODE_WINDOW, MODE_NONE, MODE_AUTO };

// The scopes of vLLM's model runner, as released versions name them, with
// VLLM_NVTX_SCOPES_FOR_PROFILING=1. A step is one pass of the runner: from preparing
// its inputs to putting its output together, behind drafts and expert balancing. A
// rank that is not the last of a pipeline puts none together: its next pass ends it.
static const char vllm_step[] = "gpu_model_runner: preprocess...gpu_model_runner: ModelRunnerOutput,Preprocess...EPLB";
static const char vllm_lanes[] =
    "gpu_model_runner: *=*,ngram_proposer_gpu: *=ngram_*,Preprocess=preprocess,Forward=forward,"
    "Postprocess=postprocess,Sample=sample,Bookkeep=bookkeep,Draft=draft,EPLB=eplb";
// SGLang's scheduler, with SGLANG_ENABLE_NVTX_SCHEDULER=1 (SGLANG_SCHEDULER_ENABLE_NVTX
// before). Its event loop is a range that never ends: a step is a batch.
static const char sglang_step[] = "scheduler.run_batch,scheduler._pp_launch_batch";
static const char sglang_lanes[] =
    "scheduler.run_batch=run_batch,scheduler._pp_launch_batch=run_batch,"
    "scheduler.launch_batch_sample_if_needed=sample,cuda_graph_runner.*=*,tp_worker.*=*";

static struct rules presets[2], own_rules;
static _Atomic(const struct rules *) rules;
static _Atomic int mode;
static int64_t window_ns = 100000000;
static int64_t patience_ns = 5000000000;
static bool lanes_named; // LANETRACE_LANES is set, so a preset's lanes are not taken
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// next takes the next of a list separated by commas.
static bool next(const char **list, struct text *t) {
  while (**list == ',' || **list == ' ')
    (*list)++;
  t->at = *list;
  t->n = strcspn(*list, ",");
  *list += t->n;
  while (t->n > 0 && t->at[t->n - 1] == ' ')
    t->n--;
  return t->n > 0;
}

static const char *within(struct text t, const char *what) {
  size_t m = strlen(what);
  for (size_t i = 0; i + m <= t.n; i++)
    if (memcmp(t.at + i, what, m) == 0)
      return t.at + i;
  return NULL;
}

static void parse_steps(struct rules *r, const char *list) {
  struct text t;
  while (r->steps < RULES && next(&list, &t)) {
    struct step_rule *s = &r->step[r->steps++];
    const char *dots = within(t, "...");
    s->first = t;
    s->last = (struct text){0};
    if (dots != NULL) {
      s->first.n = (size_t)(dots - t.at);
      s->last = (struct text){dots + 3, t.n - s->first.n - 3};
      if (s->last.n == 0) // to the next FIRST
        s->last = (struct text){"\1", 1};
    }
  }
}

static void parse_lanes(struct rules *r, const char *list) {
  struct text t;
  while (r->lanes < RULES && next(&list, &t)) {
    struct lane_rule *l = &r->lane[r->lanes++];
    const char *eq = within(t, "=");
    l->pattern = t;
    l->name = (struct text){0};
    if (eq != NULL) {
      l->pattern.n = (size_t)(eq - t.at);
      l->name = (struct text){eq + 1, t.n - l->pattern.n - 1};
    }
  }
}

static bool is(const char *v, const char *word) { return strcmp(v, word) == 0; }

// named says whether v is WORD or WORD:MS, and takes the latter's milliseconds.
static bool named(const char *v, const char *word, int64_t *ns) {
  size_t n = strlen(word);
  if (strncmp(v, word, n) != 0 || (v[n] != '\0' && v[n] != ':'))
    return false;
  if (v[n] == '\0')
    return true;
  char *end;
  long ms = strtol(v + n + 1, &end, 10);
  if (*end != '\0' || end == v + n + 1 || ms < 1 || ms > 3600000)
    lt_say("LANETRACE_STEP=%s: want %s:MS with 1 to 3600000 milliseconds; taking %lld", v, word, (long long)(*ns / 1000000));
  else
    *ns = ms * 1000000;
  return true;
}

static bool switched_on(const char *name) {
  const char *v = getenv(name);
  return v != NULL && (is(v, "1") || strcasecmp(v, "true") == 0 || strcasecmp(v, "yes") == 0 || strcasecmp(v, "y") == 0);
}

// announced is the engine whose own variable says that it will mark its scopes: until
// it does, loading weights must not be taken for steps.
static const char *announced(void) {
  if (switched_on("VLLM_NVTX_SCOPES_FOR_PROFILING"))
    return "vllm";
  if (switched_on("SGLANG_ENABLE_NVTX_SCHEDULER") || switched_on("SGLANG_ENABLE_NVTX") ||
      switched_on("SGLANG_SCHEDULER_ENABLE_NVTX"))
    return "sglang";
  return NULL;
}

// wrong_step and wrong_lane say what is wrong with a list of patterns, NULL: nothing.
static const char *wrong_step(const char *list) {
  struct text t;
  int n = 0;
  for (; next(&list, &t); n++) {
    const char *dots = within(t, "...");
    if (dots == t.at)
      return "want a pattern before \"...\"";
    if (dots != NULL && within((struct text){dots + 3, t.n - (size_t)(dots + 3 - t.at)}, "...") != NULL)
      return "want FIRST...LAST, with one \"...\"";
  }
  return n == 0 ? "want a pattern" : n > RULES ? "want at most 64 patterns" : NULL;
}

static const char *wrong_lane(const char *list) {
  struct text t;
  int n = 0;
  for (; next(&list, &t); n++) {
    const char *eq = within(t, "=");
    if (eq == t.at)
      return "want a pattern before \"=\"";
    if (eq != NULL && (eq + 1 == t.at + t.n || within((struct text){eq + 1, t.n - (size_t)(eq + 1 - t.at)}, "=") != NULL))
      return "want PATTERN=NAME, with one \"=\"";
  }
  return n == 0 ? "want a pattern" : n > RULES ? "want at most 64 patterns" : NULL;
}

static void settings(void) {
  parse_steps(&presets[0], vllm_step);
  parse_lanes(&presets[0], vllm_lanes);
  parse_steps(&presets[1], sglang_step);
  parse_lanes(&presets[1], sglang_lanes);
  const char *s = getenv("LANETRACE_STEP"), *l = getenv("LANETRACE_LANES");
  const char *wrong;
  if (l != NULL && *l != '\0' && (wrong = wrong_lane(l)) != NULL) {
    lt_say("LANETRACE_LANES=%s: %s; taking the default", l, wrong);
    l = NULL;
  }
  if (s != NULL && *s != '\0' && (wrong = wrong_step(s)) != NULL) {
    lt_say("LANETRACE_STEP=%s: %s; taking the default", s, wrong);
    s = NULL;
  }
  if (s == NULL || *s == '\0')
    s = l != NULL && (is(l, "vllm") || is(l, "sglang")) ? l : "auto";
  lanes_named = l != NULL && *l != '\0' && !is(l, "vllm") && !is(l, "sglang");
  int m = MODE_RANGES;
  const char *lanes = "*";
  const bool automatic = named(s, "auto", &patience_ns);
  const char *engine = automatic ? announced() : NULL;
  if (engine != NULL)
    s = engine;
  if (automatic && engine == NULL) {
    m = MODE_AUTO;
  } else if (is(s, "graph")) {
    m = MODE_GRAPH;
  } else if (is(s, "none")) {
    m = MODE_NONE;
  } else if (named(s, "window", &window_ns)) {
    m = MODE_WINDOW;
  } else if (is(s, "vllm")) {
    m = MODE_ENGINE;
    parse_steps(&own_rules, vllm_step);
    lanes = vllm_lanes;
  } else if (is(s, "sglang")) {
    m = MODE_ENGINE;
    parse_steps(&own_rules, sglang_step);
    lanes = sglang_lanes;
  } else {
    s = strdup(s); // the environment may change under us
    if (s != NULL)
      parse_steps(&own_rules, s);
  }
  if (l != NULL && is(l, "vllm"))
    lanes = vllm_lanes;
  else if (l != NULL && is(l, "sglang"))
    lanes = sglang_lanes;
  else if (lanes_named && (l = strdup(l)) != NULL)
    lanes = l;
  parse_lanes(&own_rules, lanes);
  atomic_store(&mode, m);
  atomic_store(&rules, &own_rules);
}

static void ready(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, settings);
}

// Scopes ---------------------------------------------------------------------------------------
//
// What is known of a range's text, found once for each text and domain. A table of
// fixed size that only grows: readers take no lock. Texts beyond it are matched anew
// each time.

enum { SCOPES = 4096, SCOPE_TEXT = 256, PROBES = 48 };
enum { IS_STEP = 1, IS_FIRST = 2, IS_LAST = 4, IS_LANE = 8 };

struct scope {
  uint64_t key;
  char text[SCOPE_TEXT]; // cut
  char label[LABEL_BYTES];
  _Atomic(const struct rules *) by; // the rules that roles follow from
  _Atomic uint32_t roles;
  _Atomic uint64_t lane; // agent's generation and the lane's number
};

static _Atomic(struct scope *) scopes[SCOPES];

static uint64_t key_of(const char *text, size_t n, const char *domain) {
  uint64_t h = 0xcbf29ce484222325u;
  for (const char *d = domain; *d != '\0'; d++)
    h = (h ^ (uint8_t)*d) * 0x100000001b3u;
  h = (h ^ 0xff) * 0x100000001b3u;
  for (size_t i = 0; i < n; i++)
    h = (h ^ (uint8_t)text[i]) * 0x100000001b3u;
  return h | 1;
}

// named_by compares a range with a pattern, which may name a domain.
static bool named_by(struct text p, const char *text, size_t n, const char *domain, size_t *from, size_t *to) {
  const char *slashes = within(p, "//");
  if (slashes != NULL) {
    size_t d = (size_t)(slashes - p.at), a, b;
    return match(p.at, d, domain, strlen(domain), &a, &b) && match(slashes + 2, p.n - d - 2, text, n, from, to);
  }
  return (*domain == '\0' || is(domain, "NVTX")) && match(p.at, p.n, text, n, from, to);
}

static void classify(struct scope *s, const struct rules *r, const char *text, size_t n, const char *domain) {
  uint32_t roles = 0;
  size_t from, to;
  for (unsigned i = 0; i < r->steps; i++) {
    const struct step_rule *k = &r->step[i];
    if (named_by(k->first, text, n, domain, &from, &to))
      roles |= k->last.n > 0 ? IS_FIRST : IS_STEP;
    if (k->last.n > 0 && named_by(k->last, text, n, domain, &from, &to))
      roles |= IS_LAST;
  }
  for (unsigned i = 0; i < r->lanes && !(roles & IS_LANE); i++) {
    const struct lane_rule *k = &r->lane[i];
    if (!named_by(k->pattern, text, n, domain, &from, &to))
      continue;
    roles |= IS_LANE;
    size_t at = 0;
    if (k->name.n == 0) {
      at = n < LABEL_BYTES - 1 ? n : LABEL_BYTES - 1;
      memcpy(s->label, text, at);
    }
    for (size_t j = 0; j < k->name.n && at < LABEL_BYTES - 1; j++) {
      if (k->name.at[j] != '*') {
        s->label[at++] = k->name.at[j];
        continue;
      }
      for (size_t q = from; q < to && at < LABEL_BYTES - 1; q++)
        s->label[at++] = text[q];
    }
    s->label[at] = '\0';
    if (at == 0)
      roles &= ~(uint32_t)IS_LANE; // a range without a text is nobody's lane
  }
  atomic_store_explicit(&s->roles, roles, memory_order_relaxed);
  atomic_store_explicit(&s->lane, 0, memory_order_relaxed);
  atomic_store_explicit(&s->by, r, memory_order_release);
}

// recognise takes a known engine's rules in, in auto mode, when its ranges appear.
static void recognise(const char *text, size_t n) {
  static const struct {
    const char *prefix;
    int preset;
  } known[] = {{"gpu_model_runner: ", 0}, {"llm_engine step: ", 0}, {"schedule: allocate_slots", 0}, {"scheduler.", 1}};
  for (unsigned i = 0; i < sizeof known / sizeof known[0]; i++) {
    size_t m = strlen(known[i].prefix);
    if (n < m || memcmp(text, known[i].prefix, m) != 0)
      continue;
    struct rules *p = &presets[known[i].preset];
    if (lanes_named) {
      memcpy(p->lane, own_rules.lane, sizeof p->lane);
      p->lanes = own_rules.lanes;
    }
    atomic_store(&rules, p);
    atomic_store(&mode, MODE_ENGINE);
    return;
  }
}

static struct scope *scope_of(const char *text, size_t n, const char *domain, struct scope *spare) {
  ready();
  uint64_t key = key_of(text, n, domain);
  const struct rules *r = atomic_load_explicit(&rules, memory_order_acquire);
  unsigned at = (unsigned)(key >> 24) & (SCOPES - 1);
  for (int i = 0; i < PROBES; i++) {
    struct scope *s = atomic_load_explicit(&scopes[(at + (unsigned)i) & (SCOPES - 1)], memory_order_acquire);
    if (s == NULL)
      break;
    if (s->key == key && atomic_load_explicit(&s->by, memory_order_acquire) == r)
      return s;
  }
  pthread_mutex_lock(&lock);
  if (atomic_load(&mode) == MODE_AUTO)
    recognise(text, n);
  r = atomic_load(&rules);
  struct scope *found = NULL;
  for (int i = 0; i < PROBES && found == NULL; i++) {
    _Atomic(struct scope *) *p = &scopes[(at + (unsigned)i) & (SCOPES - 1)];
    struct scope *s = atomic_load(p);
    if (s != NULL && s->key == key) {
      if (atomic_load(&s->by) != r)
        classify(s, r, text, n, domain);
      found = s;
    } else if (s == NULL) {
      s = calloc(1, sizeof *s);
      if (s == NULL)
        break;
      s->key = key;
      size_t m = n < SCOPE_TEXT - 1 ? n : SCOPE_TEXT - 1;
      memcpy(s->text, text, m);
      classify(s, r, text, n, domain);
      atomic_store_explicit(p, s, memory_order_release);
      found = s;
    }
  }
  if (found == NULL) {
    *spare = (struct scope){.key = key};
    classify(spare, r, text, n, domain);
    found = spare;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

static uint16_t lane_of(struct scope *s) {
  uint64_t v = atomic_load_explicit(&s->lane, memory_order_relaxed);
  if (v == 0 || v >> 32 != lt_agent_generation()) {
    uint16_t id = lt_lane_id(s->label, (uint32_t)strlen(s->label));
    if (id == 0)
      return 0;
    v = (uint64_t)lt_agent_generation() << 32 | id;
    atomic_store_explicit(&s->lane, v, memory_order_relaxed);
  }
  return (uint16_t)v;
}

// Threads ------------------------------------------------------------------------------------------

// What is beyond these is counted and said once.
enum {
  DEPTH = 64,             // ranges pushed on one thread
  DEEPER = 192,           // and of those beyond, whose domains are remembered for their pops
  STREAMS = 32,           // of one range
  STARTED_BITS = 10,
  STARTED = 1 << STARTED_BITS, // ranges started in the process and not ended
  FOLLOWED = 64,          // of those, begun by one thread
};

struct open_lane {
  void *stream;
  lt_lane lane;
  bool captured; // not opened, as the stream was captured: to be tried again
};
struct range {
  uint64_t domain; // a hash of the domain's name; 0: the range was missed, it may be of any
  const char *text;
  struct scope *scope; // NULL when the table had no room for it
  uint32_t roles;
  uint16_t lane;
  uint8_t streams;
  bool more; // launched on streams beyond those that are followed
  bool early; // from before the hub's start: its roles are not played yet
  uint32_t order; // among the ranges of its thread, as they began
  lt_step step; // which its lanes belong to, 0: none
  lt_step begun; // which it began itself
  struct open_lane open[STREAMS]; // as many as streams says; the rest is not written
};
// What of a range is written when it begins.
enum { RANGE_HEAD = offsetof(struct range, open) };

struct thread {
  uint32_t epoch; // of the process: what is older is void
  int depth;
  int deeper; // pushed beyond the stack
  uint64_t deep[DEEPER]; // their domains as in struct range
  int missed; // pushed at level off above what is on the stack
  int early;  // ranges on the stack whose roles are not played yet
  bool early_started; // and there may be started ones
  uint32_t order; // of the range that begins next
  int lanes;  // ranges on the stack whose lanes may be due
  lt_step cycle; // begun by FIRST, not yet ended
  void *settled; // a stream on which all lanes due are open
  bool is_settled;
  int followed;
  uint64_t follow[FOLLOWED]; // ranges started here, in the order in which they began
  struct range stack[DEPTH];
};

// One pointer, so that it fits the static block that is left for libraries loaded
// late (NVTX opens this one when it was not preloaded).
static _Thread_local struct thread *self __attribute__((tls_model("initial-exec")));
static pthread_key_t key;
static bool key_made;

// The latest step begun that has not ended.
static _Atomic lt_step latest;
static _Atomic int own_steps;
// The process has marked a step at some time.
static _Atomic int marked;
// What was launched outside of steps since the latest mark: when that began (0: nothing
// was), when the latest was, and whether there was a pause as long as our patience.
static struct {
  _Atomic int64_t since_ns, last_ns;
  _Atomic bool paused;
} unmarked;
// Counts forks: a child's ranges are not its parent's.
static _Atomic uint32_t epoch;

// Ranges that any thread may end.
static struct {
  pthread_mutex_t lock;
  struct {
    uint64_t id; // 0: free
    struct range r;
  } at[STARTED];
  uint64_t last;
  uint32_t free; // no place before it is free
} started = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void end_step(lt_step s) {
  lt_step expect = s;
  atomic_compare_exchange_strong(&latest, &expect, 0);
  lt_step_end(s);
}

static struct {
  pthread_mutex_t lock;
  _Atomic lt_step step;
  _Atomic int64_t until_ns;
} window = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void end_window(void) {
  pthread_mutex_lock(&window.lock);
  lt_step s = atomic_exchange(&window.step, 0);
  atomic_store(&window.until_ns, 0);
  pthread_mutex_unlock(&window.lock);
  if (s != 0)
    end_step(s);
}

// mark: the process marks a step; a window that stood in for one has ended.
static void mark(void) {
  atomic_store_explicit(&marked, 1, memory_order_relaxed);
  atomic_store_explicit(&unmarked.since_ns, 0, memory_order_relaxed);
  if (atomic_load_explicit(&window.step, memory_order_relaxed) != 0)
    end_window();
}

static lt_step begin_step(unsigned source) {
  lt_step s = lt_step_begin_by(source);
  if (s != 0)
    atomic_store_explicit(&latest, s, memory_order_relaxed);
  return s;
}

static void close_range(struct range *r) {
  for (unsigned i = r->streams; i > 0; i--)
    if (lt_lane_is_open(r->open[i - 1].lane))
      lt_lane_end(r->open[i - 1].lane);
  r->streams = 0;
  if (r->begun != 0)
    end_step(r->begun);
  r->begun = 0;
}

static void thread_ends(void *p) {
  struct thread *t = p;
  while (t->depth > 0)
    close_range(&t->stack[--t->depth]);
  if (t->cycle != 0)
    end_step(t->cycle);
  self = NULL;
  free(t);
}

static void in_child(void) {
  pthread_mutex_init(&lock, NULL);
  pthread_mutex_init(&started.lock, NULL);
  pthread_mutex_init(&window.lock, NULL);
  atomic_store(&window.step, 0);
  atomic_store(&window.until_ns, 0);
  for (uint32_t i = 0; i < STARTED; i++)
    if (started.at[i].id != 0)
      started.at[i].id = 0;
  started.free = 0;
  atomic_store(&unmarked.since_ns, 0);
  atomic_store(&latest, 0);
  atomic_fetch_add(&epoch, 1);
}

__attribute__((constructor)) static void loaded(void) {
  key_made = pthread_key_create(&key, thread_ends) == 0;
  pthread_atfork(NULL, NULL, in_child);
}

static void play(struct thread *t);

// not_followed counts a range, or a part of one, for which there is no room, and says
// so the first time.
#define not_followed(...)                             \
  do {                                                \
    static _Atomic int said_;                         \
    lt_ring_add(lt_hub_ring(), LT_CTR_MISUSE, 1);     \
    lt_say_once(&said_, __VA_ARGS__);                 \
  } while (0)

// is_full: what is pushed now goes beyond the stack, in order.
static bool is_full(const struct thread *t) { return t->depth == DEPTH || t->deeper > 0; }

static void push_deeper(struct thread *t, uint64_t domain) {
  if (t->deeper < DEEPER)
    t->deep[t->deeper] = domain;
  t->deeper++;
}

// pop_deeper takes the innermost of the domain off what is beyond the stack.
static bool pop_deeper(struct thread *t, uint64_t domain) {
  int at = t->deeper - 1;
  while (at >= 0 && at < DEEPER && t->deep[at] != domain && t->deep[at] != 0)
    at--;
  if (at < 0)
    return false;
  if (at < DEEPER)
    memmove(&t->deep[at], &t->deep[at + 1], (size_t)(t->deeper - at - 1) * sizeof t->deep[0]);
  t->deeper--;
  return true;
}

// thread is the calling thread's ranges, with what was missed or has waited for the
// hub in its place.
static struct thread *thread(void) {
  struct thread *t = self;
  uint32_t now = atomic_load_explicit(&epoch, memory_order_relaxed);
  if (t == NULL) {
    if (!key_made || (t = calloc(1, sizeof *t)) == NULL)
      return NULL;
    t->epoch = now;
    pthread_setspecific(key, t);
    self = t;
    atomic_fetch_or_explicit(&lt_ranges_word, LT_RANGES_SEEN, memory_order_relaxed);
  }
  if (t->epoch != now) {
    // Its steps and lanes are the parent's, which ends them itself.
    t->depth = t->deeper = t->missed = t->early = t->lanes = t->followed = 0;
    t->early_started = false;
    t->cycle = 0;
    t->is_settled = false;
    t->epoch = now;
  }
  for (; t->missed > 0; t->missed--) {
    if (is_full(t))
      push_deeper(t, 0);
    else
      memset(&t->stack[t->depth++], 0, RANGE_HEAD);
  }
  if ((t->early > 0 || t->early_started) && lt_hub_level() != LT_LEVEL_OFF)
    play(t);
  return t;
}

// current is the step in which a range that begins now lies.
static lt_step current(const struct thread *t) {
  if (t != NULL) {
    for (int i = t->depth; i > 0; i--)
      if (t->stack[i - 1].begun != 0)
        return t->stack[i - 1].begun;
    if (t->cycle != 0)
      return t->cycle;
  }
  return atomic_load_explicit(&latest, memory_order_relaxed);
}

static bool inside_own(const struct thread *t) {
  for (int i = t->depth; i > 0; i--)
    if (t->stack[i - 1].begun != 0)
      return true;
  return false;
}

// begin_as begins what a range is: a step, a lane of one.
static void begin_as(struct thread *t, struct range *r, struct scope *s, bool outermost) {
  uint32_t roles = atomic_load_explicit(&s->roles, memory_order_relaxed);
  if (atomic_load_explicit(&mode, memory_order_relaxed) == MODE_AUTO && outermost &&
      !atomic_load_explicit(&own_steps, memory_order_relaxed) && (roles & IS_LANE))
    roles |= IS_STEP;
  if (roles & (IS_STEP | IS_FIRST))
    mark();
  if (roles & IS_FIRST) {
    if (t->cycle != 0)
      end_step(t->cycle);
    t->cycle = begin_step(LT_STEP_MARKED);
  } else if ((roles & IS_STEP) && !inside_own(t)) {
    r->begun = begin_step(LT_STEP_MARKED);
  }
  r->step = r->begun != 0 ? r->begun : current(t);
  if ((roles & IS_LANE) && r->step != 0)
    r->lane = lane_of(s);
  r->roles = roles;
}

// the_started is a range that was started, NULL when it has ended. Under its lock.
static struct range *the_started(uint64_t id) {
  uint32_t at = (uint32_t)(id & (STARTED - 1));
  return id != 0 && started.at[at].id == id ? &started.at[at].r : NULL;
}

// play_started begins what of the thread's started ranges waited for the hub and began
// before the range of that order.
static void play_started(struct thread *t, int *next, uint32_t order) {
  for (; *next < t->followed; ++*next) {
    struct range *r = the_started(t->follow[*next]);
    if (r != NULL && r->order >= order)
      return;
    if (r == NULL || !r->early)
      continue;
    r->early = false;
    begin_as(t, r, r->scope, t->depth == 0);
  }
}

// play begins what waited for the hub, in the order in which it began.
static void play(struct thread *t) {
  const int n = t->depth;
  const bool any = t->early_started;
  int next = 0;
  t->early = 0;
  t->early_started = false;
  if (any)
    pthread_mutex_lock(&started.lock);
  for (int i = 0; i < n; i++) {
    struct range *r = &t->stack[i];
    t->depth = i; // what is inside of it has begun nothing
    if (any)
      play_started(t, &next, r->order);
    if (!r->early)
      continue;
    r->early = false;
    begin_as(t, r, r->scope, i == 0);
    if (r->lane != 0)
      t->lanes++;
  }
  t->depth = n;
  if (any) {
    play_started(t, &next, UINT32_MAX);
    pthread_mutex_unlock(&started.lock);
  }
  t->is_settled = false;
}

// begin fills a range that begins on the thread.
static void begin(struct thread *t, struct range *r, const char *text, size_t n, const char *domain) {
  struct scope spare, *s = scope_of(text, n, domain, &spare);
  memset(r, 0, RANGE_HEAD);
  r->domain = key_of("", 0, domain);
  r->order = t->order++;
  if (s != &spare) {
    r->text = s->text;
    r->scope = s;
  }
  if (lt_hub_level() != LT_LEVEL_OFF)
    begin_as(t, r, s, t->depth == 0 && t->deeper == 0);
  else
    r->early = r->scope != NULL;
}

// plays: a range of that text would be a step or a lane.
static bool plays(const char *text, size_t n, const char *domain) {
  struct scope spare;
  return atomic_load_explicit(&scope_of(text, n, domain, &spare)->roles, memory_order_relaxed) != 0;
}

int lt_range_push(const char *text, size_t bytes, const char *domain) {
  struct thread *t;
  if (!lt_ranges_followed() || (t = thread()) == NULL)
    return -1;
  if (is_full(t)) {
    if (lt_hub_level() != LT_LEVEL_OFF && plays(text, bytes, domain))
      not_followed("ranges are nested deeper than %d: those beyond are counted (misuse) and not timed", DEPTH);
    push_deeper(t, key_of("", 0, domain));
    return t->depth + t->deeper - 1;
  }
  struct range *r = &t->stack[t->depth];
  begin(t, r, text, bytes, domain);
  if (r->early)
    t->early++;
  if (r->lane != 0) {
    t->lanes++;
    t->is_settled = false;
  }
  return t->depth++;
}

void lt_range_missed(void) {
  struct thread *t = self;
  if (t != NULL && t->depth > 0)
    t->missed++;
}

int lt_range_pop(const char *domain) {
  struct thread *t = self;
  if (t == NULL)
    return -1;
  if (!lt_ranges_followed() && (t->depth == 0 || t->missed > 0)) {
    if (t->missed > 0)
      t->missed--;
    return -1;
  }
  if ((t = thread()) == NULL)
    return -1;
  uint64_t d = key_of("", 0, domain);
  if (pop_deeper(t, d))
    return t->depth + t->deeper;
  int at = t->depth - 1;
  while (at >= 0 && t->stack[at].domain != d && t->stack[at].domain != 0)
    at--;
  if (at < 0)
    return -1;
  struct range *r = &t->stack[at];
  if (r->early)
    t->early--;
  if (r->lane != 0)
    t->lanes--;
  uint32_t roles = r->roles;
  close_range(r);
  t->depth--;
  memmove(r, r + 1, (size_t)(t->depth - at) * sizeof *r);
  t->is_settled = false;
  if ((roles & IS_LAST) && t->cycle != 0) {
    end_step(t->cycle);
    t->cycle = 0;
  }
  return t->depth + t->deeper;
}

// take_started takes a free place, and returns the range's id; 0 without one. Under the
// lock.
static uint64_t take_started(void) {
  while (started.free < STARTED && started.at[started.free].id != 0)
    started.free++;
  if (started.free == STARTED)
    return 0;
  uint32_t at = started.free++;
  return started.at[at].id = ++started.last << STARTED_BITS | at;
}

// follow has the thread's launches open the range's lanes. Under the lock.
static bool follow(struct thread *t, uint64_t id) {
  if (t->followed == FOLLOWED) { // some may have ended on other threads
    int kept = 0;
    for (int i = 0; i < t->followed; i++)
      if (the_started(t->follow[i]) != NULL)
        t->follow[kept++] = t->follow[i];
    t->followed = kept;
  }
  if (t->followed == FOLLOWED)
    return false;
  t->follow[t->followed++] = id;
  return true;
}

uint64_t lt_range_start(const char *text, size_t bytes, const char *domain) {
  struct thread *t;
  if (!lt_ranges_followed() || (t = thread()) == NULL)
    return 0;
  bool followed = true;
  pthread_mutex_lock(&started.lock);
  // The place comes first: what cannot be kept open must not begin a step.
  uint64_t id = take_started();
  if (id != 0) {
    struct range *r = the_started(id);
    begin(t, r, text, bytes, domain);
    if (r->lane != 0 || r->early)
      followed = follow(t, id);
    if (r->early && followed)
      t->early_started = true;
    r->early = r->early && followed;
  }
  pthread_mutex_unlock(&started.lock);
  t->is_settled = false;
  if (id == 0 && lt_hub_level() != LT_LEVEL_OFF && plays(text, bytes, domain))
    not_followed("more than %d ranges are started and not ended: those beyond are counted (misuse) and not timed", STARTED);
  if (!followed)
    not_followed("a thread has started more than %d ranges that are not ended: the lanes of those beyond are counted (misuse) "
                 "and not timed", FOLLOWED);
  return id;
}

void lt_range_stop(uint64_t range) {
  if (range == 0)
    return;
  struct range gone = {.streams = 0};
  pthread_mutex_lock(&started.lock);
  const struct range *r = the_started(range);
  if (r != NULL) {
    memcpy(&gone, r, RANGE_HEAD + r->streams * sizeof r->open[0]);
    uint32_t at = (uint32_t)(range & (STARTED - 1));
    started.at[at].id = 0;
    if (at < started.free)
      started.free = at;
  }
  pthread_mutex_unlock(&started.lock);
  close_range(&gone);
  struct thread *t = self;
  if ((gone.roles & IS_LAST) && t != NULL && t->cycle != 0) {
    end_step(t->cycle);
    t->cycle = 0;
  }
}

// Launches --------------------------------------------------------------------------------------------

// Whether the launch's stream is being captured, found out at most once a launch.
enum capture { NOT_ASKED, CAPTURED, NOT_CAPTURED };

static bool captured(enum capture *c, void *stream) {
  if (*c == NOT_ASKED)
    *c = lt_stream_is_captured(stream) ? CAPTURED : NOT_CAPTURED;
  return *c == CAPTURED;
}

// place_on is where the range's lane on the stream is to be opened, -1 when there is
// nothing to open.
static int place_on(struct range *r, void *stream) {
  if (r->lane == 0)
    return -1;
  for (int i = 0; i < r->streams; i++)
    if (r->open[i].stream == stream)
      return r->open[i].captured ? i : -1;
  if (r->streams == STREAMS) {
    if (!r->more)
      not_followed("a range launches on more than %d streams: its lanes on those beyond are counted (misuse) and not timed",
                   STREAMS);
    r->more = true;
    return -1;
  }
  // Remembered also when it will not be opened: but for captures it is not tried again
  // at each launch.
  r->open[r->streams] = (struct open_lane){.stream = stream};
  return r->streams++;
}

// open_lane opens a lane on the stream; again says that a capture was in the way before,
// captured that one is.
static struct open_lane open_lane(lt_step step, uint16_t lane, void *stream, bool again, enum capture *c) {
  struct open_lane o = {.stream = stream, .captured = again};
  if (!again || !captured(c, stream))
    o.lane = lt_lane_try(step, lane, stream, &o.captured);
  return o;
}

// open_started opens the lanes of started ranges, without the lock while it is in the
// driver, where others may have to launch for this thread to get on.
static bool open_started(struct thread *t, void *stream, enum capture *c) {
  bool all = true;
  int kept = 0;
  for (int i = 0; i < t->followed; i++) {
    const uint64_t id = t->follow[i];
    int at = -1;
    lt_step step = 0;
    uint16_t lane = 0;
    bool again = false;
    pthread_mutex_lock(&started.lock);
    struct range *r = the_started(id);
    if (r != NULL) {
      t->follow[kept++] = id;
      at = place_on(r, stream);
      step = r->step;
      lane = r->lane;
      again = at >= 0 && r->open[at].captured;
    }
    pthread_mutex_unlock(&started.lock);
    if (at < 0)
      continue;
    struct open_lane o = open_lane(step, lane, stream, again, c);
    all = all && !o.captured;
    pthread_mutex_lock(&started.lock);
    r = the_started(id);
    if (r != NULL)
      r->open[at] = o;
    pthread_mutex_unlock(&started.lock);
    if (r == NULL && lt_lane_is_open(o.lane)) // another thread has ended it
      lt_lane_end(o.lane);
  }
  t->followed = kept;
  return all;
}

static void open_lanes(struct thread *t, void *stream) {
  enum capture c = NOT_ASKED;
  bool all = open_started(t, stream, &c);
  if (t->lanes > 0)
    for (int i = 0; i < t->depth; i++) {
      struct range *r = &t->stack[i];
      const int at = place_on(r, stream);
      if (at >= 0) {
        r->open[at] = open_lane(r->step, r->lane, stream, r->open[at].captured, &c);
        all = all && !r->open[at].captured;
      }
    }
  t->settled = stream;
  t->is_settled = all;
}

// What stands in ------------------------------------------------------------------------------

static _Atomic int graphs_seen;

// goes_unmarked: launches have gone on for as long as our patience without a mark. A
// program that marks its steps may pause between two for longer, and launch something
// before and behind the pause: of one that has marked any, one pause is not counted.
static bool goes_unmarked(void) {
  const int64_t now = lt_mono_ns();
  const bool paused = atomic_load(&unmarked.paused);
  int64_t since = atomic_load(&unmarked.since_ns), last = atomic_load_explicit(&unmarked.last_ns, memory_order_relaxed);
  bool goes = since != 0 && now - since >= patience_ns;
  if (since == 0) {
    if (atomic_compare_exchange_strong(&unmarked.since_ns, &since, now))
      atomic_store(&unmarked.paused, false);
  } else if (goes && !paused && now - last >= patience_ns && last - since < patience_ns &&
             atomic_load_explicit(&marked, memory_order_relaxed)) {
    // Of several threads one begins the count anew; the flag follows, so that who sees
    // it set sees the new count.
    if (atomic_compare_exchange_strong(&unmarked.since_ns, &since, now))
      atomic_store(&unmarked.paused, true);
    goes = false;
  }
  atomic_store_explicit(&unmarked.last_ns, now, memory_order_relaxed);
  return goes;
}

// stand_in is the mode in force for launches outside of marked steps; of a known
// engine's only its graph launches are asked about: it launches much while it loads.
static int stand_in(void) {
  ready();
  int m = atomic_load_explicit(&mode, memory_order_relaxed);
  if (m != MODE_AUTO && m != MODE_ENGINE)
    return m;
  if (atomic_load_explicit(&own_steps, memory_order_relaxed) || !goes_unmarked())
    return MODE_NONE;
  return m == MODE_ENGINE || atomic_load_explicit(&graphs_seen, memory_order_relaxed) ? MODE_GRAPH : MODE_WINDOW;
}

static const char *any_more(void) { return atomic_load_explicit(&marked, memory_order_relaxed) ? " any more" : ""; }

static void say_window(void) {
  static _Atomic int said;
  lt_say_once(&said, "no steps are marked%s: windows of %lld ms stand in for them (LANETRACE_STEP)", any_more(),
              (long long)(window_ns / 1000000));
}

static void say_graph(void) {
  static _Atomic int said;
  lt_say_once(&said, "no steps are marked%s: each graph launch stands in for one (LANETRACE_STEP)", any_more());
}

static lt_step in_window(void) {
  int64_t now = lt_mono_ns();
  if (now < atomic_load_explicit(&window.until_ns, memory_order_relaxed))
    return atomic_load_explicit(&window.step, memory_order_relaxed);
  say_window();
  pthread_mutex_lock(&window.lock);
  lt_step s = atomic_load(&window.step);
  if (now >= atomic_load(&window.until_ns)) {
    if (s != 0)
      end_step(s);
    s = begin_step(LT_STEP_WINDOW);
    atomic_store(&window.step, s);
    atomic_store(&window.until_ns, now + window_ns);
  }
  pthread_mutex_unlock(&window.lock);
  return s;
}

lt_step lt_steps_launch(void *stream) {
  struct thread *t = self;
  if (t != NULL && (t->lanes > 0 || t->followed > 0 || t->early > 0)) {
    t = thread();
    if (t != NULL && (!t->is_settled || t->settled != stream))
      open_lanes(t, stream);
  }
  lt_step s = current(t);
  lt_step w = atomic_load_explicit(&window.step, memory_order_relaxed);
  if (s != 0 && s != w)
    return s;
  const bool ranges = atomic_load_explicit(&mode, memory_order_relaxed) <= MODE_ENGINE &&
                      atomic_load_explicit(&rules, memory_order_relaxed) != NULL;
  if (!ranges && stand_in() == MODE_WINDOW)
    return in_window();
  if (w != 0)
    end_window();
  return 0;
}

lt_step lt_steps_graph_begin(lt_stand_in *in, void *stream) {
  *in = (lt_stand_in){0};
  atomic_store_explicit(&graphs_seen, 1, memory_order_relaxed);
  lt_step s = lt_steps_launch(stream);
  if (s != 0 || stand_in() != MODE_GRAPH)
    return s;
  say_graph();
  static _Atomic uint64_t lane;
  uint64_t v = atomic_load_explicit(&lane, memory_order_relaxed);
  if (v >> 32 != lt_agent_generation()) {
    v = (uint64_t)lt_agent_generation() << 32 | lt_lane_id("graph", 5);
    atomic_store_explicit(&lane, v, memory_order_relaxed);
  }
  in->step = lt_step_begin_by(LT_STEP_GRAPH);
  in->lane = lt_lane_begin(in->step, (uint16_t)v, stream);
  return in->step;
}

void lt_steps_graph_end(lt_stand_in *in) {
  if (lt_lane_is_open(in->lane))
    lt_lane_end(in->lane);
  if (in->step != 0)
    lt_step_end(in->step);
}

void lt_steps_overlapping(void) { lt_ring_add(lt_hub_ring(), LT_CTR_OVERLAPPING, 1); }

const char *lt_steps_range(void) {
  const struct thread *t = self;
  if (t == NULL || t->epoch != atomic_load_explicit(&epoch, memory_order_relaxed))
    return NULL;
  for (int i = t->depth; i > 0; i--)
    if (t->stack[i - 1].text != NULL)
      return t->stack[i - 1].text;
  return NULL;
}

lt_step lt_steps_own_begin(void) {
  atomic_store_explicit(&own_steps, 1, memory_order_relaxed);
  mark();
  return begin_step(LT_STEP_MARKED);
}

void lt_steps_own_end(lt_step s) {
  if (s != 0)
    end_step(s);
}
