/* A library for LD_PRELOAD: counts the file calls of a process below one folder and lets some of them fail.
 *
 *   FAULT_UNDER  the folder, as an absolute path
 *   FAULT_LOG    a file elsewhere that receives a line `call path` for every counted call
 *   FAULT_AT     number of the call, from 1, at which FAULT_HOW begins; 0: no call fails
 *   FAULT_HOW    error      this call fails with EIO
 *                stay       this one and all later ones fail with EIO
 *                full       from this one on, calls that need room on the disk fail with ENOSPC
 *                short      this call, a read or write, moves half of its bytes
 *                interrupt  this call fails with EINTR
 *                kill       SIGKILL instead of this call; a write has written half of its bytes
 *
 * Files of the folder are touched by one thread of the process: nothing here is locked. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES 1024

/* What a call does, as far as faults depend on it. */
enum kind { PLAIN, MAKES, READS, WRITES };
enum fate { PASS, FAIL, HALF };

static char *names[FILES]; /* paths of the open files that are counted */
static long calls;

static void *real(const char *name) {
    void *f = dlsym(RTLD_NEXT, name);
    if (!f) abort();
    return f;
}
#define REAL(name) ((__typeof__(&name))real(#name))

static const char *setting(const char *name) {
    const char *s = getenv(name);
    return s ? s : "";
}

static int how(const char *word) { return strcmp(setting("FAULT_HOW"), word) == 0; }

static int below(const char *path) {
    const char *under = setting("FAULT_UNDER");
    size_t n = strlen(under);
    return path && n && strncmp(path, under, n) == 0 && (path[n] == '/' || path[n] == 0);
}

static const char *name_of(int fd) { return fd >= 0 && fd < FILES ? names[fd] : NULL; }

static int opened(int fd, const char *path) {
    if (fd >= FILES) abort();
    if (fd >= 0) names[fd] = strdup(path);
    return fd;
}

static void note(const char *call, const char *path) {
    static int log = -1;
    char line[4200];
    if (log < 0) log = REAL(open)(setting("FAULT_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int n = snprintf(line, sizeof line, "%s %s\n", call, path);
    if (REAL(write)(log, line, n) != n) abort();
}

static enum fate fail(int error) {
    errno = error;
    return FAIL;
}

/* Counts a call on `path` (NULL: not below the folder) and says what becomes of it; errno is set where it fails. */
static enum fate count(const char *call, const char *path, enum kind kind) {
    long at = atol(setting("FAULT_AT"));
    if (!path) return PASS;
    calls++;
    note(call, path);
    if (!at || calls < at) return PASS;
    if (how("stay")) return fail(EIO);
    if (how("full")) return kind == MAKES || kind == WRITES ? fail(ENOSPC) : PASS;
    if (calls > at) return PASS;
    if (how("error")) return fail(EIO);
    if (how("interrupt")) return fail(EINTR);
    if (how("short")) return kind == READS || kind == WRITES ? HALF : PASS;
    if (how("kill") && kind == WRITES) return HALF;
    if (how("kill")) kill(getpid(), SIGKILL);
    return PASS;
}

/* The path of a call, or NULL where it is not counted. */
static const char *counted(const char *path) { return below(path) ? path : NULL; }

/* The number of bytes that a read or write of `n` moves, or -1 where it fails. */
static ssize_t share(const char *call, int fd, size_t n, enum kind kind) {
    switch (count(call, name_of(fd), kind)) {
    case PASS: return n;
    case HALF: return n / 2;
    default: return -1;
    }
}

static ssize_t moved(ssize_t done) {
    if (how("kill") && calls == atol(setting("FAULT_AT"))) kill(getpid(), SIGKILL);
    return done;
}

ssize_t read(int fd, void *to, size_t n) {
    ssize_t m = share("read", fd, n, READS);
    return m < 0 ? m : REAL(read)(fd, to, m);
}

ssize_t write(int fd, const void *from, size_t n) {
    ssize_t m = share("write", fd, n, WRITES);
    if (m < 0) return m;
    m = REAL(write)(fd, from, m);
    return name_of(fd) ? moved(m) : m;
}

/* A vector that is counted is written as its first part: the caller goes on with the rest. */
ssize_t writev(int fd, const struct iovec *v, int n) {
    return name_of(fd) && n > 0 ? write(fd, v->iov_base, v->iov_len) : REAL(writev)(fd, v, n);
}

/* open and open64, which take a mode only where they make a file. */
#define OPEN(name)                                                                                         \
    int name(const char *path, int flags, ...) {                                                           \
        mode_t mode = 0;                                                                                   \
        if (flags & (O_CREAT | O_TMPFILE)) {                                                               \
            va_list more;                                                                                  \
            va_start(more, flags);                                                                         \
            mode = va_arg(more, mode_t);                                                                   \
            va_end(more);                                                                                  \
        }                                                                                                  \
        if (count("open", counted(path), flags & O_CREAT ? MAKES : PLAIN) == FAIL) return -1;              \
        int fd = REAL(name)(path, flags, mode);                                                            \
        return below(path) ? opened(fd, path) : fd;                                                        \
    }
OPEN(open)
OPEN(open64)

/* Closing never fails here: what was written is asked of fsync. */
int close(int fd) {
    if (name_of(fd)) {
        free(names[fd]);
        names[fd] = NULL;
    }
    return REAL(close)(fd);
}

DIR *opendir(const char *path) {
    return count("opendir", counted(path), PLAIN) == FAIL ? NULL : REAL(opendir)(path);
}

/* Calls that only pass or fail: on a path, and on an open file. */
#define CALL(name, parameters, arguments, path, kind)                                                      \
    int name parameters { return count(#name, path, kind) == FAIL ? -1 : REAL(name) arguments; }
CALL(mkdir, (const char *path, mode_t mode), (path, mode), counted(path), MAKES)
CALL(rename, (const char *from, const char *to), (from, to), counted(to), PLAIN)
CALL(unlink, (const char *path), (path), counted(path), PLAIN)
CALL(fsync, (int fd), (fd), name_of(fd), PLAIN)
CALL(fdatasync, (int fd), (fd), name_of(fd), PLAIN)
CALL(ftruncate64, (int fd, off64_t n), (fd, n), name_of(fd), PLAIN)
CALL(flock, (int fd, int operation), (fd, operation), name_of(fd), PLAIN)

/* Rust asks with null pointers whether the kernel has statx, which the header's prototype forbids: hence another name here. */
int counted_statx(int at, const char *path, int flags, unsigned mask, void *to) __asm__("statx");
int counted_statx(int at, const char *path, int flags, unsigned mask, void *to) {
    const char *file = path && *path ? counted(path) : path ? name_of(at) : NULL;
    if (count("statx", file, PLAIN) == FAIL) return -1;
    return ((int (*)(int, const char *, int, unsigned, void *))real("statx"))(at, path, flags, mask, to);
}
