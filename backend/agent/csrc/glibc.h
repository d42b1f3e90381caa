// SPDX-License-Identifier: Apache-2.0
//
// Included before everything else by every source of the agent (gcc -include):
// binds what glibc 2.34 moved from libpthread and libdl into libc to its old
// versions, so that a library built on a new system loads on one with glibc 2.28.
// A function that is missing here and has only a newer version fails the test of
// symbol versions. stat and its kin have no old version to bind to: use statx.
#ifndef LANETRACE_AGENT_GLIBC_H
#define LANETRACE_AGENT_GLIBC_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <features.h>

#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
#if defined(__x86_64__)
#define LT_OLD "GLIBC_2.2.5"
#define LT_OLD_23 "GLIBC_2.3.4"
#elif defined(__aarch64__)
#define LT_OLD "GLIBC_2.17"
#define LT_OLD_23 "GLIBC_2.17"
#endif
#ifdef LT_OLD
#define LT_BIND(f, v) __asm__(".symver " #f "," #f "@" v)
LT_BIND(pthread_create, LT_OLD);
LT_BIND(pthread_join, LT_OLD);
LT_BIND(pthread_detach, LT_OLD);
LT_BIND(pthread_once, LT_OLD);
LT_BIND(pthread_key_create, LT_OLD);
LT_BIND(pthread_key_delete, LT_OLD);
LT_BIND(pthread_getspecific, LT_OLD);
LT_BIND(pthread_setspecific, LT_OLD);
LT_BIND(pthread_mutex_trylock, LT_OLD);
LT_BIND(pthread_sigmask, LT_OLD);
LT_BIND(pthread_rwlock_init, LT_OLD);
LT_BIND(pthread_rwlock_destroy, LT_OLD);
LT_BIND(pthread_rwlock_rdlock, LT_OLD);
LT_BIND(pthread_rwlock_wrlock, LT_OLD);
LT_BIND(pthread_rwlock_tryrdlock, LT_OLD);
LT_BIND(pthread_rwlock_trywrlock, LT_OLD);
LT_BIND(pthread_rwlock_unlock, LT_OLD);
LT_BIND(sem_init, LT_OLD);
LT_BIND(sem_post, LT_OLD);
LT_BIND(sem_wait, LT_OLD);
LT_BIND(dlopen, LT_OLD);
LT_BIND(dlclose, LT_OLD);
LT_BIND(dlvsym, LT_OLD);
LT_BIND(dlerror, LT_OLD);
LT_BIND(dladdr, LT_OLD);
LT_BIND(dladdr1, LT_OLD_23);
LT_BIND(dlinfo, LT_OLD_23);
#endif
#endif

#endif
