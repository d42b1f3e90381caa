// SPDX-License-Identifier: Apache-2.0
//
// Modules, libraries, functions and their launches.

#include "ptx.h"

#include <errno.h>

struct module {
  struct obj o;
  struct context *ctx;
  struct ptx *ptx;
  struct function **fns; // made when asked for, one per entry of ptx
  uintptr_t *globals;    // addresses, one per global of ptx
  struct library *lib;   // whose instance in ctx this is, if any
  struct module *next;   // of the library
};

struct function {
  struct obj o;
  struct module *mod;
  struct fninfo *info; // of mod->ptx
  int max_shared;      // dynamic; launches with more are refused
};

struct library {
  struct obj o;
  struct ptx *ptx;
  struct kernel **kernels;
  struct module *instances;
};

struct kernel {
  struct obj o;
  struct library *lib;
  size_t index;
};

// Loading --------------------------------------------------------------------------

static struct ptx *image_parse(const void *image, CUresult *r, char *err, size_t errlen) {
  const unsigned char *b = image;
  if ((b[0] == 0x7f && b[1] == 'E') || (b[0] == 0x50 && b[1] == 0xed)) {
    if (err != NULL && errlen > 0)
      snprintf(err, errlen, "only PTX text can be loaded here");
    *r = CUDA_ERROR_NO_BINARY_FOR_GPU;
    return NULL;
  }
  return ptx_parse(image, r, err, errlen);
}

static void module_free(struct module *m) {
  for (size_t i = 0; m->fns != NULL && i < m->ptx->nfns; i++)
    if (m->fns[i] != NULL)
      obj_free(m->fns[i]);
  for (size_t i = 0; m->globals != NULL && i < m->ptx->nglobals; i++) {
    struct alloc *a = m->globals[i] != 0 ? alloc_find(m->globals[i]) : NULL;
    if (a != NULL)
      alloc_drop(a);
  }
  free(m->fns);
  free(m->globals);
  if (m->lib != NULL) {
    struct module **at = &m->lib->instances;
    while (*at != m)
      at = &(*at)->next;
    *at = m->next;
  }
  ptx_unref(m->ptx);
  obj_free(m);
}

// module_new takes over the caller's reference to p if it succeeds.
static struct module *module_new(struct context *c, struct ptx *p, CUresult *r) {
  struct module *m = obj_new(K_MODULE, sizeof *m);
  *r = CUDA_ERROR_OUT_OF_MEMORY;
  if (m == NULL)
    return NULL;
  m->ctx = c;
  m->ptx = ptx_ref(p);
  m->fns = calloc(p->nfns + 1, sizeof *m->fns);
  m->globals = calloc(p->nglobals + 1, sizeof *m->globals);
  bool ok = m->fns != NULL && m->globals != NULL;
  for (size_t i = 0; ok && i < p->nglobals; i++) {
    const struct ptx_global *g = &p->globals[i];
    ok = alloc_internal(c, g->bytes > 0 ? g->bytes : 1, &m->globals[i]) == CUDA_SUCCESS;
    if (ok)
      memcpy((void *)m->globals[i], g->init, g->bytes);
  }
  if (!ok) {
    module_free(m);
    return NULL;
  }
  ptx_unref(p);
  *r = CUDA_SUCCESS;
  return m;
}

// jit_log copies the message into the caller's error log and says how much of
// it there is, as the just-in-time compiler does.
static void jit_log(const char *msg, unsigned n, int *options, void **values) {
  char *buf = NULL;
  size_t cap = 0;
  void **size_at = NULL;
  for (unsigned i = 0; i < n; i++) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER)
      buf = values[i];
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
      cap = (uintptr_t)values[i] & 0xffffffffu;
      size_at = &values[i];
    }
  }
  if (buf != NULL && cap > 0)
    snprintf(buf, cap, "%s", msg);
  if (size_at != NULL) {
    size_t len = buf != NULL && *msg != '\0' ? strlen(msg) + 1 : 0;
    *size_at = (void *)(uintptr_t)(len < cap ? len : cap);
  }
}

static CUresult module_load(enum fn_id fn, CUmodule *module, const void *image, unsigned n, int *options, void **values) {
  ENTER(fn);
  NEED(module);
  NEED(image);
  if (n > 0 && (options == NULL || values == NULL))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  NEED_CONTEXT(c);
  ctx_sync(c); // as measured; a capture elsewhere does not mind
  CUresult r;
  char err[512] = "";
  struct ptx *p = image_parse(image, &r, err, sizeof err);
  struct module *m = NULL;
  if (p != NULL) {
    m = module_new(c, p, &r);
    if (m == NULL)
      ptx_unref(p);
  }
  jit_log(err, n, options, values);
  if (m != NULL)
    *module = (CUmodule)m;
  LEAVE(r);
}
EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  return module_load(FN_cuModuleLoadData, module, image, 0, NULL, NULL);
}
EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
  return module_load(FN_cuModuleLoadFatBinary, module, image, 0, NULL, NULL);
}
EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned n, int *options, void **values) {
  return module_load(FN_cuModuleLoadDataEx, module, image, n, options, values);
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path) {
  ENTER(FN_cuModuleLoad);
  NEED(module);
  NEED(path);
  NEED_CONTEXT(c);
  ctx_sync(c);
  FILE *f = fopen(path, "rbe");
  if (f == NULL)
    LEAVE(CUDA_ERROR_FILE_NOT_FOUND);
  char *text = NULL;
  size_t len = 0;
  // PTX holds no NUL, so this reads all of it.
  ssize_t n = getdelim(&text, &len, '\0', f);
  fclose(f);
  CUresult r = CUDA_ERROR_INVALID_IMAGE;
  if (n > 0) {
    struct ptx *p = image_parse(text, &r, NULL, 0);
    struct module *m = NULL;
    if (p != NULL) {
      m = module_new(c, p, &r);
      if (m == NULL)
        ptx_unref(p);
    }
    if (m != NULL)
      *module = (CUmodule)m;
  }
  free(text);
  LEAVE(r);
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
  ENTER(FN_cuModuleUnload);
  NEED_CONTEXT(c);
  struct module *m = obj_get(module, K_MODULE);
  if (m == NULL || m->lib != NULL)
    LEAVE(CUDA_ERROR_INVALID_HANDLE);
  NEED_UNCAPTURED();
  ctx_sync(m->ctx); // kernels in flight may use its globals
  m = obj_get(module, K_MODULE);
  if (m == NULL)
    LEAVE(CUDA_ERROR_INVALID_HANDLE);
  module_free(m);
  LEAVE(CUDA_SUCCESS);
}

static bool module_pick(struct obj *o, void *ctx) { return ((struct module *)o)->ctx == ctx; }
static void module_drop(struct obj *o) { module_free((struct module *)o); }
void modules_drop_context(struct context *c) { obj_sweep(K_MODULE, module_pick, c, module_drop); }

static struct function *module_function(struct module *m, size_t i) {
  if (m->fns[i] == NULL) {
    struct function *f = obj_new(K_FUNCTION, sizeof *f);
    if (f == NULL)
      return NULL;
    f->mod = m;
    f->info = m->ptx->fns[i];
    f->max_shared = 49152;
    m->fns[i] = f;
  }
  return m->fns[i];
}

static size_t entry_index(const struct ptx *p, const char *name) {
  for (size_t i = 0; i < p->nfns; i++)
    if (strcmp(p->fns[i]->name, name) == 0)
      return i;
  return SIZE_MAX;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *fn, CUmodule module, const char *name) {
  ENTER(FN_cuModuleGetFunction);
  NEED(fn);
  NEED(name);
  struct module *m = obj_get(module, K_MODULE);
  if (m == NULL)
    LEAVE(CUDA_ERROR_INVALID_HANDLE);
  size_t i = entry_index(m->ptx, name);
  if (i == SIZE_MAX)
    LEAVE(CUDA_ERROR_NOT_FOUND);
  struct function *f = module_function(m, i);
  if (f == NULL)
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  *fn = (CUfunction)f;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module) {
  ENTER(FN_cuModuleGetFunctionCount);
  NEED(count);
  struct module *m = obj_get(module, K_MODULE);
  if (m == NULL)
    LEAVE(CUDA_ERROR_INVALID_HANDLE);
  *count = (unsigned)m->ptx->nfns;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *fns, unsigned n, CUmodule module) {
  ENTER(FN_cuModuleEnumerateFunctions);
  NEED(fns);
  struct module *m = obj_get(module, K_MODULE);
  if (m == NULL)
    LEAVE(CUDA_ERROR_INVALID_HANDLE);
  for (size_t i = 0; i < n && i < m->ptx->nfns; i++) {
    fns[i] = (CUfunction)module_function(m, i);
    if (fns[i] == NULL)
      LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  }
  LEAVE(CUDA_SUCCESS);
}

static CUresult module_global(struct module *m, CUdeviceptr *ptr, size_t *bytes, const char *name) {
  for (size_t i = 0; i < m->ptx->nglobals; i++) {
    if (strcmp(m->ptx->globals[i].name, name) != 0)
      continue;
    if (ptr != NULL)
      *ptr = m->globals[i];
    if (bytes != NULL)
      *bytes = m->ptx->globals[i].bytes;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *ptr, size_t *bytes, CUmodule module, const char *name) {
  ENTER(FN_cuModuleGetGlobal_v2);
  NEED(name);
  struct module *m = obj_get(module, K_MODULE);
  LEAVE(m == NULL ? CUDA_ERROR_INVALID_HANDLE : module_global(m, ptr, bytes, name));
}

EXPORT CUresult cuModuleGetLoadingMode(int *mode) {
  ENTER(FN_cuModuleGetLoadingMode);
  NEED(mode);
  *mode = 2; // lazy
  LEAVE(CUDA_SUCCESS);
}

// Libraries: modules that appear in a context when they are first used there -----------

EXPORT CUresult cuLibraryLoadData(CUlibrary *lib, const void *code, int *jitOptions, void **jitValues, unsigned nJit,
                                  int *libOptions, void **libValues, unsigned nLib) {
  ENTER(FN_cuLibraryLoadData);
  NEED(lib);
  NEED(code);
  (void)libOptions;
  (void)libValues;
  (void)nLib;
  if (nJit > 0 && (jitOptions == NULL || jitValues == NULL))
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  CUresult r;
  char err[512] = "";
  struct ptx *p = image_parse(code, &r, err, sizeof err);
  jit_log(err, nJit, jitOptions, jitValues);
  if (p == NULL)
    LEAVE(r);
  struct library *l = obj_new(K_LIBRARY, sizeof *l);
  if (l != NULL)
    l->kernels = calloc(p->nfns + 1, sizeof *l->kernels);
  if (l == NULL || l->kernels == NULL) {
    if (l != NULL)
      obj_free(l);
    ptx_unref(p);
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  }
  l->ptx = p;
  *lib = (CUlibrary)l;
  LEAVE(CUDA_SUCCESS);
}

#define NEED_LIBRARY(l, h)                      \
  struct library *l = obj_get(h, K_LIBRARY);    \
  if (l == NULL)                                \
  LEAVE(CUDA_ERROR_INVALID_HANDLE)

EXPORT CUresult cuLibraryUnload(CUlibrary lib) {
  ENTER(FN_cuLibraryUnload);
  NEED_LIBRARY(l, lib);
  NEED_UNCAPTURED();
  for (struct module *m = l->instances, *next; m != NULL; m = next) {
    next = m->next;
    ctx_sync(m->ctx);
  }
  if (obj_get(lib, K_LIBRARY) != l)
    LEAVE(CUDA_ERROR_INVALID_HANDLE);
  while (l->instances != NULL)
    module_free(l->instances);
  for (size_t i = 0; i < l->ptx->nfns; i++)
    if (l->kernels[i] != NULL)
      obj_free(l->kernels[i]);
  free(l->kernels);
  ptx_unref(l->ptx);
  obj_free(l);
  LEAVE(CUDA_SUCCESS);
}

static struct kernel *library_kernel(struct library *l, size_t i) {
  if (l->kernels[i] == NULL) {
    struct kernel *k = obj_new(K_KERNEL, sizeof *k);
    if (k == NULL)
      return NULL;
    k->lib = l;
    k->index = i;
    l->kernels[i] = k;
  }
  return l->kernels[i];
}

static struct module *library_instance(struct library *l, struct context *c, CUresult *r) {
  for (struct module *m = l->instances; m != NULL; m = m->next)
    if (m->ctx == c)
      return m;
  struct module *m = module_new(c, ptx_ref(l->ptx), r);
  if (m == NULL) {
    ptx_unref(l->ptx);
    return NULL;
  }
  m->lib = l;
  m->next = l->instances;
  l->instances = m;
  return m;
}

static struct function *kernel_function(struct kernel *k, struct context *c, CUresult *r) {
  struct module *m = library_instance(k->lib, c, r);
  if (m == NULL)
    return NULL;
  struct function *f = module_function(m, k->index);
  *r = f != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  return f;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary lib, const char *name) {
  ENTER(FN_cuLibraryGetKernel);
  NEED(kernel);
  NEED(name);
  NEED_LIBRARY(l, lib);
  size_t i = entry_index(l->ptx, name);
  if (i == SIZE_MAX)
    LEAVE(CUDA_ERROR_NOT_FOUND);
  struct kernel *k = library_kernel(l, i);
  if (k == NULL)
    LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  *kernel = (CUkernel)k;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary lib) {
  ENTER(FN_cuLibraryGetKernelCount);
  NEED(count);
  NEED_LIBRARY(l, lib);
  *count = (unsigned)l->ptx->nfns;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned n, CUlibrary lib) {
  ENTER(FN_cuLibraryEnumerateKernels);
  NEED(kernels);
  NEED_LIBRARY(l, lib);
  for (size_t i = 0; i < n && i < l->ptx->nfns; i++) {
    kernels[i] = (CUkernel)library_kernel(l, i);
    if (kernels[i] == NULL)
      LEAVE(CUDA_ERROR_OUT_OF_MEMORY);
  }
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary lib) {
  ENTER(FN_cuLibraryGetModule);
  NEED(module);
  NEED_CONTEXT(c);
  NEED_LIBRARY(l, lib);
  CUresult r;
  struct module *m = library_instance(l, c, &r);
  if (m == NULL)
    LEAVE(r);
  *module = (CUmodule)m;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *ptr, size_t *bytes, CUlibrary lib, const char *name) {
  ENTER(FN_cuLibraryGetGlobal);
  NEED(name);
  NEED_CONTEXT(c);
  NEED_LIBRARY(l, lib);
  CUresult r;
  struct module *m = library_instance(l, c, &r);
  LEAVE(m == NULL ? r : module_global(m, ptr, bytes, name));
}

#define NEED_KERNEL(k, h)                     \
  struct kernel *k = obj_get(h, K_KERNEL);    \
  if (k == NULL)                              \
  LEAVE(CUDA_ERROR_INVALID_HANDLE)

EXPORT CUresult cuKernelGetFunction(CUfunction *fn, CUkernel kernel) {
  ENTER(FN_cuKernelGetFunction);
  NEED(fn);
  NEED_CONTEXT(c);
  NEED_KERNEL(k, kernel);
  CUresult r;
  struct function *f = kernel_function(k, c, &r);
  if (f == NULL)
    LEAVE(r);
  *fn = (CUfunction)f;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuKernelGetLibrary(CUlibrary *lib, CUkernel kernel) {
  ENTER(FN_cuKernelGetLibrary);
  NEED(lib);
  NEED_KERNEL(k, kernel);
  *lib = (CUlibrary)k->lib;
  LEAVE(CUDA_SUCCESS);
}

// Functions ------------------------------------------------------------------------------

// Launches take a kernel of a library for a function, questions do not.
static struct fninfo *info_of(CUfunction h) {
  struct function *f = obj_get(h, K_FUNCTION);
  return f != NULL ? f->info : NULL;
}

static struct fninfo *info_of_kernel(CUkernel h) {
  struct kernel *k = obj_get(h, K_KERNEL);
  return k != NULL ? k->lib->ptx->fns[k->index] : NULL;
}

static CUresult get_name(const char **name, struct fninfo *f) {
  if (name == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (f == NULL)
    return CUDA_ERROR_INVALID_HANDLE;
  *name = f->name;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncGetName(const char **name, CUfunction fn) {
  ENTER(FN_cuFuncGetName);
  LEAVE(get_name(name, info_of(fn)));
}
EXPORT CUresult cuKernelGetName(const char **name, CUkernel k) {
  ENTER(FN_cuKernelGetName);
  LEAVE(get_name(name, info_of_kernel(k)));
}

static CUresult param_info(struct fninfo *f, size_t index, size_t *offset, size_t *size) {
  if (f == NULL)
    return CUDA_ERROR_INVALID_HANDLE;
  if (offset == NULL || index >= f->nparams)
    return CUDA_ERROR_INVALID_VALUE;
  *offset = f->offset[index];
  if (size != NULL)
    *size = f->size[index];
  return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncGetParamInfo(CUfunction fn, size_t index, size_t *offset, size_t *size) {
  ENTER(FN_cuFuncGetParamInfo);
  LEAVE(param_info(info_of(fn), index, offset, size));
}
EXPORT CUresult cuKernelGetParamInfo(CUkernel k, size_t index, size_t *offset, size_t *size) {
  ENTER(FN_cuKernelGetParamInfo);
  LEAVE(param_info(info_of_kernel(k), index, offset, size));
}

EXPORT CUresult cuFuncGetModule(CUmodule *module, CUfunction fn) {
  ENTER(FN_cuFuncGetModule);
  NEED(module);
  struct function *f = obj_get(fn, K_FUNCTION);
  if (f == NULL)
    LEAVE(CUDA_ERROR_INVALID_HANDLE);
  *module = (CUmodule)f->mod;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuFuncGetAttribute(int *value, int attrib, CUfunction fn) {
  ENTER(FN_cuFuncGetAttribute);
  NEED(value);
  struct function *f = obj_get(fn, K_FUNCTION);
  if (f == NULL)
    LEAVE(CUDA_ERROR_INVALID_HANDLE);
  if (attrib < 0 || attrib >= CU_FUNC_ATTRIBUTE_MAX)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  switch (attrib) {
  case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
  case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
  case CU_FUNC_ATTRIBUTE_PTX_VERSION:
  case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 90; break;
  case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = f->max_shared; break;
  case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = -1; break;
  default: *value = 0; break;
  }
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuFuncSetAttribute(CUfunction fn, int attrib, int value) {
  ENTER(FN_cuFuncSetAttribute);
  struct function *f = obj_get(fn, K_FUNCTION);
  if (f == NULL)
    LEAVE(CUDA_ERROR_INVALID_HANDLE);
  if (attrib == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
    LEAVE(CUDA_SUCCESS);
  if (attrib != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || value > 232448)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  f->max_shared = value;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuFuncIsLoaded(int *state, CUfunction fn) {
  ENTER(FN_cuFuncIsLoaded);
  NEED(state);
  if (info_of(fn) == NULL)
    LEAVE(CUDA_ERROR_INVALID_HANDLE);
  *state = 1;
  LEAVE(CUDA_SUCCESS);
}

EXPORT CUresult cuFuncLoad(CUfunction fn) {
  ENTER(FN_cuFuncLoad);
  LEAVE(info_of(fn) == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS);
}

static CUresult occupancy(enum fn_id fn, int *blocks, CUfunction f, int blockSize, size_t dynamicShared) {
  ENTER(fn);
  NEED(blocks);
  if (info_of(f) == NULL)
    LEAVE(CUDA_ERROR_INVALID_HANDLE);
  if (blockSize <= 0)
    LEAVE(CUDA_ERROR_INVALID_VALUE);
  int n = 0;
  if (blockSize <= 1024) {
    int warps = (blockSize + 31) / 32;
    n = 64 / warps; // 2,048 threads
    if (n > 32)
      n = 32;
    if (dynamicShared > 0 && (size_t)n > 233472 / (dynamicShared + 1024))
      n = (int)(233472 / (dynamicShared + 1024));
  }
  *blocks = n;
  LEAVE(CUDA_SUCCESS);
}
EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int size, size_t shared) {
  return occupancy(FN_cuOccupancyMaxActiveBlocksPerMultiprocessor, blocks, f, size, shared);
}
EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction f, int size, size_t shared,
                                                                     unsigned flags) {
  (void)flags;
  return occupancy(FN_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, blocks, f, size, shared);
}

// Launches ----------------------------------------------------------------------------------

// gather copies a launch's parameters into one block laid out as the entry
// declares them.
static CUresult gather(const struct fninfo *f, void **params, void **extra, unsigned char **out) {
  unsigned char *blob = calloc(1, f->bytes > 0 ? f->bytes : 1);
  if (blob == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = CUDA_SUCCESS;
  if (params != NULL && extra != NULL) {
    r = CUDA_ERROR_INVALID_VALUE;
  } else if (extra != NULL) {
    const void *buf = NULL;
    const size_t *size = NULL;
    for (void **e = extra; *e != CU_LAUNCH_PARAM_END; e += 2) {
      if (*e == CU_LAUNCH_PARAM_BUFFER_POINTER)
        buf = e[1];
      else if (*e == CU_LAUNCH_PARAM_BUFFER_SIZE)
        size = e[1];
      else
        r = CUDA_ERROR_INVALID_VALUE;
      if (r != CUDA_SUCCESS)
        break;
    }
    // A buffer shorter than the parameters is taken as it is, as measured.
    if (buf == NULL || size == NULL)
      r = CUDA_ERROR_INVALID_VALUE;
    else
      memcpy(blob, buf, *size < f->bytes ? *size : f->bytes);
  } else {
    for (size_t i = 0; i < f->nparams && r == CUDA_SUCCESS; i++) {
      if (params == NULL || params[i] == NULL)
        r = CUDA_ERROR_INVALID_VALUE;
      else
        memcpy(blob + f->offset[i], params[i], f->size[i]);
    }
  }
  if (r != CUDA_SUCCESS) {
    free(blob);
    return r;
  }
  *out = blob;
  return CUDA_SUCCESS;
}

static bool shape_ok(const unsigned g[3], const unsigned b[3]) {
  for (int i = 0; i < 3; i++)
    if (g[i] == 0 || b[i] == 0)
      return false;
  return g[0] <= 2147483647u && g[1] <= 65535 && g[2] <= 65535 && b[0] <= 1024 && b[1] <= 1024 && b[2] <= 64 &&
         b[0] * b[1] * b[2] <= 1024;
}

// kernel_work makes the work of a launch in context c.
CUresult kernel_work(struct context *c, CUfunction h, const unsigned grid[3], const unsigned block[3], unsigned shared,
                     void **params, void **extra, struct work *w) {
  struct function *f = obj_get(h, K_FUNCTION);
  if (f == NULL) {
    struct kernel *k = obj_get(h, K_KERNEL);
    if (k == NULL)
      return CUDA_ERROR_INVALID_HANDLE;
    CUresult r = CUDA_SUCCESS;
    f = kernel_function(k, c, &r);
    if (f == NULL)
      return r;
  }
  if (f->mod->ctx != c)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!shape_ok(grid, block) || shared > (unsigned)f->max_shared)
    return CUDA_ERROR_INVALID_VALUE;
  *w = (struct work){.kind = W_KERNEL, .dur_ns = -1};
  CUresult r = gather(f->info, params, extra, &w->u.k.blob);
  if (r != CUDA_SUCCESS)
    return r;
  w->u.k.info = fninfo_ref(f->info);
  w->u.k.handle = (CUfunction)f;
  w->u.k.body = kernel_body(f->info);
  memcpy(w->u.k.grid, grid, sizeof w->u.k.grid);
  memcpy(w->u.k.block, block, sizeof w->u.k.block);
  w->u.k.shared = shared;
  return CUDA_SUCCESS;
}

static void log_launch(enum fn_id fn, struct stream *s, const struct work *w) {
  if (!log_on())
    return;
  const struct fninfo *f = w->u.k.info;
  char hex[1025];
  size_t n = f->bytes < 512 ? f->bytes : 512;
  for (size_t i = 0; i < n; i++)
    snprintf(hex + 2 * i, 3, "%02x", w->u.k.blob[i]);
  hex[2 * n] = '\0';
  const unsigned *g = w->u.k.grid, *b = w->u.k.block;
  log_line(fn, s, " kernel=%s grid=%u,%u,%u block=%u,%u,%u shared=%u params=%s", f->name, g[0], g[1], g[2], b[0], b[1],
           b[2], w->u.k.shared, hex);
}

static CUresult launch(enum fn_id fn, bool pt, CUfunction h, const unsigned grid[3], const unsigned block[3],
                       unsigned shared, CUstream stream, void **params, void **extra, bool cooperative) {
  ENTER(fn);
  NEED_STREAM(c, s, stream, pt);
  struct work w;
  CUresult r = kernel_work(c, h, grid, block, shared, params, extra, &w);
  if (r != CUDA_SUCCESS)
    LEAVE(r);
  if (cooperative && (uint64_t)grid[0] * grid[1] * grid[2] > 132u * (2048u / (block[0] * block[1] * block[2]))) {
    work_clear(&w);
    LEAVE(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  }
  log_launch(fn, s, &w);
  LEAVE(submit(s, &w, NULL));
}

static CUresult do_cuLaunchKernel(enum fn_id id, bool pt, CUfunction fn, unsigned gx, unsigned gy, unsigned gz,
                                  unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params,
                                  void **extra) {
  return launch(id, pt, fn, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, stream, params, extra, false);
}
PAIR(cuLaunchKernel, _ptsz,
     (CUfunction fn, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
      CUstream stream, void **params, void **extra),
     (fn, gx, gy, gz, bx, by, bz, shared, stream, params, extra))

static CUresult do_cuLaunchCooperativeKernel(enum fn_id id, bool pt, CUfunction fn, unsigned gx, unsigned gy, unsigned gz,
                                             unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                             void **params) {
  return launch(id, pt, fn, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, stream, params, NULL, true);
}
PAIR(cuLaunchCooperativeKernel, _ptsz,
     (CUfunction fn, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
      CUstream stream, void **params),
     (fn, gx, gy, gz, bx, by, bz, shared, stream, params))

static CUresult do_cuLaunchKernelEx(enum fn_id id, bool pt, const CUlaunchConfig *cfg, CUfunction fn, void **params,
                                    void **extra) {
  static const CUlaunchConfig none; // all zero: refused below as a shape
  if (cfg == NULL)
    cfg = &none;
  const CUlaunchConfig *k = cfg;
  return launch(id, pt, fn, (unsigned[]){k->gridDimX, k->gridDimY, k->gridDimZ},
                (unsigned[]){k->blockDimX, k->blockDimY, k->blockDimZ}, k->sharedMemBytes, k->hStream, params, extra,
                false);
}
PAIR(cuLaunchKernelEx, _ptsz, (const CUlaunchConfig *cfg, CUfunction fn, void **params, void **extra),
     (cfg, fn, params, extra))
