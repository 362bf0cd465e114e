/* Preloaded into a process (LD_PRELOAD): counts its calls that change files below $FAULT_ROOT, and its
 * questions about them: "read" (open for reading), "stat", "list". Before each one it asks the other end of $FAULT_PIPE, by a line with the call and the file, what to do:
 * "-" goes on, a number fails the call with that errno.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *root;
static int ask_fd = -1, answer_fd = -1;
static pid_t owner;

__attribute__((constructor)) static void start(void) {
  const char *pipes = getenv("FAULT_PIPE");
  root = getenv("FAULT_ROOT");
  owner = getpid();
  if (pipes) sscanf(pipes, "%d,%d", &ask_fd, &answer_fd);
}

static int below(const char *path) { return root && !strncmp(path, root, strlen(root)); }

/* The whole path; 0 where it is not below the root. */
static int find(int folder, const char *path, char *whole) {
  char base[PATH_MAX], link[64];
  if (!root || !path) return 0;
  if (path[0] == '/') {
    snprintf(whole, 2 * PATH_MAX, "%s", path);
    return below(whole);
  }
  if (folder == AT_FDCWD) {
    if (!getcwd(base, sizeof base)) return 0;
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t n = readlink(link, base, sizeof base - 1);
    if (n < 0) return 0;
    base[n] = 0;
  }
  snprintf(whole, 2 * PATH_MAX, path[0] ? "%s/%s" : "%s", base, path);
  return below(whole);
}

/* Whether the call is to fail; errno is set then. Meanwhile the other end may look at the folder. */
static int fails(const char *call, int folder, const char *path) {
  char whole[2 * PATH_MAX], line[2 * PATH_MAX + 64], answer[16];
  int saved = errno, code = 0;
  if (ask_fd < 0 || getpid() != owner || !find(folder, path, whole)) {
    errno = saved;
    return 0;
  }
  pthread_mutex_lock(&lock);
  int n = snprintf(line, sizeof line, "%s %s\n", call, whole);
  ssize_t (*plain_write)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
  if (plain_write(ask_fd, line, n) == n) {
    ssize_t got = read(answer_fd, answer, sizeof answer - 1);
    if (got > 0) {
      answer[got] = 0;
      code = answer[0] == '-' ? 0 : atoi(answer);
    }
  }
  pthread_mutex_unlock(&lock);
  errno = code ? code : saved;
  return code;
}

#define NEXT(type, name, ...) type (*next)(__VA_ARGS__) = dlsym(RTLD_NEXT, #name)

static int opens_for_change(int flags) { return flags & (O_CREAT | O_TRUNC); }

static const char *call_of(int flags) { return opens_for_change(flags) ? "open" : "read"; }

#define OPEN(name)                                                                   \
  int name(const char *path, int flags, ...) {                                       \
    NEXT(int, name, const char *, int, ...);                                         \
    va_list rest;                                                                    \
    va_start(rest, flags);                                                           \
    mode_t mode = opens_for_change(flags) ? va_arg(rest, mode_t) : 0;                \
    va_end(rest);                                                                    \
    if (fails(call_of(flags), AT_FDCWD, path)) return -1;                            \
    return next(path, flags, mode);                                                  \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                 \
  int name(int folder, const char *path, int flags, ...) {                           \
    NEXT(int, name, int, const char *, int, ...);                                    \
    va_list rest;                                                                    \
    va_start(rest, flags);                                                           \
    mode_t mode = opens_for_change(flags) ? va_arg(rest, mode_t) : 0;                \
    va_end(rest);                                                                    \
    if (fails(call_of(flags), folder, path)) return -1;                              \
    return next(folder, path, flags, mode);                                          \
  }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void *bytes, size_t count) {
  NEXT(ssize_t, write, int, const void *, size_t);
  if (fails("write", fd, "")) return -1;
  return next(fd, bytes, count);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
  NEXT(ssize_t, writev, int, const struct iovec *, int);
  if (fails("write", fd, "")) return -1;
  return next(fd, parts, count);
}

#define PWRITE(name)                                                  \
  ssize_t name(int fd, const void *bytes, size_t count, off64_t at) { \
    NEXT(ssize_t, name, int, const void *, size_t, off64_t);          \
    if (fails("write", fd, "")) return -1;                    \
    return next(fd, bytes, count, at);                                \
  }
PWRITE(pwrite)
PWRITE(pwrite64)

int fsync(int fd) {
  NEXT(int, fsync, int);
  if (fails("fsync", fd, "")) return -1;
  return next(fd);
}

int fdatasync(int fd) {
  NEXT(int, fdatasync, int);
  if (fails("fsync", fd, "")) return -1;
  return next(fd);
}

int rename(const char *from, const char *to) {
  NEXT(int, rename, const char *, const char *);
  if (fails("rename", AT_FDCWD, to)) return -1;
  return next(from, to);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
  NEXT(int, renameat, int, const char *, int, const char *);
  if (fails("rename", to_folder, to)) return -1;
  return next(from_folder, from, to_folder, to);
}

int unlink(const char *path) {
  NEXT(int, unlink, const char *);
  if (fails("unlink", AT_FDCWD, path)) return -1;
  return next(path);
}

int unlinkat(int folder, const char *path, int flags) {
  NEXT(int, unlinkat, int, const char *, int);
  if (fails("unlink", folder, path)) return -1;
  return next(folder, path, flags);
}

int rmdir(const char *path) {
  NEXT(int, rmdir, const char *);
  if (fails("rmdir", AT_FDCWD, path)) return -1;
  return next(path);
}

int mkdir(const char *path, mode_t mode) {
  NEXT(int, mkdir, const char *, mode_t);
  if (fails("mkdir", AT_FDCWD, path)) return -1;
  return next(path, mode);
}

int mkdirat(int folder, const char *path, mode_t mode) {
  NEXT(int, mkdirat, int, const char *, mode_t);
  if (fails("mkdir", folder, path)) return -1;
  return next(folder, path, mode);
}

#define TRUNCATE(name)                              \
  int name(int fd, off64_t length) {                \
    NEXT(int, name, int, off64_t);                  \
    if (fails("truncate", fd, "")) return -1; \
    return next(fd, length);                        \
  }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define STAT(name, type)                                                     \
  int name(const char *path, struct type *status) {                         \
    NEXT(int, name, const char *, struct type *);                           \
    if (fails("stat", AT_FDCWD, path)) return -1;                           \
    return next(path, status);                                              \
  }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

#define STATAT(name, type)                                                   \
  int name(int folder, const char *path, struct type *status, int flags) {  \
    NEXT(int, name, int, const char *, struct type *, int);                 \
    if (path[0] && fails("stat", folder, path)) return -1;                  \
    return next(folder, path, status, flags);                               \
  }
STATAT(fstatat, stat)
STATAT(fstatat64, stat64)

/* What libraries built with a glibc before 2.33 call. */
#define OLD_STAT(name, type)                                                 \
  int name(int version, const char *path, struct type *status) {            \
    NEXT(int, name, int, const char *, struct type *);                      \
    if (fails("stat", AT_FDCWD, path)) return -1;                           \
    return next(version, path, status);                                     \
  }
OLD_STAT(__xstat, stat)
OLD_STAT(__xstat64, stat64)
OLD_STAT(__lxstat, stat)
OLD_STAT(__lxstat64, stat64)

DIR *opendir(const char *path) {
  NEXT(DIR *, opendir, const char *);
  if (fails("list", AT_FDCWD, path)) return NULL;
  return next(path);
}

int access(const char *path, int mode) {
  NEXT(int, access, const char *, int);
  if (fails("stat", AT_FDCWD, path)) return -1;
  return next(path, mode);
}
