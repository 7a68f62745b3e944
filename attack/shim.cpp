// SPDX-License-Identifier: BSD-3-Clause
// Comes before the C library (LD_PRELOAD) and counts the calls that change files below one folder. The one
// that was asked for is not what it should be: the process is killed before it, after it or in its middle,
// or it fails. Built and used by attack/calls.py.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>

namespace {

enum Mode { none, before, after, torn, fails, shortened };

std::atomic<long> count{0};
long chosen = -1;
int mode = none, number = 0;
char root[4096];
char done[64];  // the name of the call that was hit

bool below(const char* path) { return root[0] && strncmp(path, root, strlen(root)) == 0; }

// Whether a path, relative to an open folder, lies below the root.
bool is_ours(int folder, const char* path) {
    if (!root[0] || !path) return false;
    if (path[0] == '/') return below(path);
    char link[64], place[4096];
    if (folder == AT_FDCWD) return getcwd(place, sizeof place) && below(place);
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t n = readlink(link, place, sizeof place - 1);
    if (n < 0) return false;
    place[n] = 0;
    return below(place);
}

bool is_ours(int file) { return is_ours(file, "."); }

void die() {
    raise(SIGKILL);
    for (;;) pause();
}

// Whether this call is the one; kills before it.
bool hit(const char* name) {
    if (count++ != chosen) return false;
    strncpy(done, name, sizeof done - 1);
    if (mode == before) die();
    return true;
}

template <class F>
F* next(const char* name) {
    return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

void attack_plan(const char* below, long call, int how, int error) {
    strncpy(root, below, sizeof root - 1);
    count = 0, chosen = call, mode = how, number = error, done[0] = 0;
}
long attack_count() { return count; }
const char* attack_hit() { return done; }

// A call without parts: it can fail, or end the process before or after.
#define WHOLE(ours, name, call)                 \
    if (!(ours)) return call;                   \
    bool now = hit(name);                       \
    if (now && mode == fails) {                 \
        errno = number;                         \
        return -1;                              \
    }                                           \
    auto result = call;                         \
    if (now && (mode == after || mode == torn)) die(); \
    return result;

// A call that writes n bytes: also in part.
#define PARTLY(name, call)                      \
    if (!is_ours(file)) return call;            \
    bool now = hit(name);                       \
    if (now && mode == fails) {                 \
        errno = number;                         \
        return -1;                              \
    }                                           \
    if (now && (mode == torn || mode == shortened) && n > 1) n /= 2; \
    auto result = call;                         \
    if (now && (mode == after || mode == torn)) die(); \
    return result;

ssize_t write(int file, const void* data, size_t n) {
    static auto real = next<ssize_t(int, const void*, size_t)>("write");
    PARTLY("write", real(file, data, n))
}
ssize_t pwrite(int file, const void* data, size_t n, off_t at) {
    static auto real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
    PARTLY("pwrite", real(file, data, n, at))
}
ssize_t pwrite64(int file, const void* data, size_t n, off64_t at) {
    static auto real = next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
    PARTLY("pwrite", real(file, data, n, at))
}
ssize_t sendfile(int file, int from, off_t* at, size_t n) {
    static auto real = next<ssize_t(int, int, off_t*, size_t)>("sendfile");
    PARTLY("sendfile", real(file, from, at, n))
}
ssize_t sendfile64(int file, int from, off64_t* at, size_t n) {
    static auto real = next<ssize_t(int, int, off64_t*, size_t)>("sendfile64");
    PARTLY("sendfile", real(file, from, at, n))
}
ssize_t copy_file_range(int from, off64_t* a, int file, off64_t* b, size_t n, unsigned flags) {
    static auto real = next<ssize_t(int, off64_t*, int, off64_t*, size_t, unsigned)>("copy_file_range");
    PARTLY("copy_file_range", real(from, a, file, b, n, flags))
}
ssize_t writev(int file, const struct iovec* parts, int n) {
    static auto real = next<ssize_t(int, const struct iovec*, int)>("writev");
    PARTLY("writev", real(file, parts, n))
}
int posix_fallocate(int file, off_t at, off_t n) {
    static auto real = next<int(int, off_t, off_t)>("posix_fallocate");
    if (is_ours(file) && count == chosen && mode == fails) return ++count, number;
    WHOLE(is_ours(file), "posix_fallocate", real(file, at, n))
}
int posix_fallocate64(int file, off64_t at, off64_t n) {
    static auto real = next<int(int, off64_t, off64_t)>("posix_fallocate64");
    if (is_ours(file) && count == chosen && mode == fails) return ++count, number;
    WHOLE(is_ours(file), "posix_fallocate", real(file, at, n))
}
int ftruncate(int file, off_t n) {
    static auto real = next<int(int, off_t)>("ftruncate");
    WHOLE(is_ours(file), "ftruncate", real(file, n))
}
int ftruncate64(int file, off64_t n) {
    static auto real = next<int(int, off64_t)>("ftruncate64");
    WHOLE(is_ours(file), "ftruncate", real(file, n))
}
int truncate(const char* path, off_t n) {
    static auto real = next<int(const char*, off_t)>("truncate");
    WHOLE(is_ours(AT_FDCWD, path), "truncate", real(path, n))
}
int truncate64(const char* path, off64_t n) {
    static auto real = next<int(const char*, off64_t)>("truncate64");
    WHOLE(is_ours(AT_FDCWD, path), "truncate", real(path, n))
}
int fsync(int file) {
    static auto real = next<int(int)>("fsync");
    WHOLE(is_ours(file), "fsync", real(file))
}
int fdatasync(int file) {
    static auto real = next<int(int)>("fdatasync");
    WHOLE(is_ours(file), "fdatasync", real(file))
}
int rename(const char* from, const char* to) {
    static auto real = next<int(const char*, const char*)>("rename");
    WHOLE(is_ours(AT_FDCWD, to) || is_ours(AT_FDCWD, from), "rename", real(from, to))
}
int renameat(int a, const char* from, int b, const char* to) {
    static auto real = next<int(int, const char*, int, const char*)>("renameat");
    WHOLE(is_ours(b, to) || is_ours(a, from), "rename", real(a, from, b, to))
}
int renameat2(int a, const char* from, int b, const char* to, unsigned flags) {
    static auto real = next<int(int, const char*, int, const char*, unsigned)>("renameat2");
    WHOLE(is_ours(b, to) || is_ours(a, from), "rename", real(a, from, b, to, flags))
}
int link(const char* from, const char* to) {
    static auto real = next<int(const char*, const char*)>("link");
    WHOLE(is_ours(AT_FDCWD, to), "link", real(from, to))
}
int symlink(const char* from, const char* to) {
    static auto real = next<int(const char*, const char*)>("symlink");
    WHOLE(is_ours(AT_FDCWD, to), "symlink", real(from, to))
}
int unlink(const char* path) {
    static auto real = next<int(const char*)>("unlink");
    WHOLE(is_ours(AT_FDCWD, path), "unlink", real(path))
}
int unlinkat(int folder, const char* path, int flags) {
    static auto real = next<int(int, const char*, int)>("unlinkat");
    WHOLE(is_ours(folder, path), "unlink", real(folder, path, flags))
}
int rmdir(const char* path) {
    static auto real = next<int(const char*)>("rmdir");
    WHOLE(is_ours(AT_FDCWD, path), "rmdir", real(path))
}
int mkdir(const char* path, mode_t bits) {
    static auto real = next<int(const char*, mode_t)>("mkdir");
    WHOLE(is_ours(AT_FDCWD, path), "mkdir", real(path, bits))
}
int mkdirat(int folder, const char* path, mode_t bits) {
    static auto real = next<int(int, const char*, mode_t)>("mkdirat");
    WHOLE(is_ours(folder, path), "mkdir", real(folder, path, bits))
}
int chmod(const char* path, mode_t bits) {
    static auto real = next<int(const char*, mode_t)>("chmod");
    WHOLE(is_ours(AT_FDCWD, path), "chmod", real(path, bits))
}
int fchmod(int file, mode_t bits) {
    static auto real = next<int(int, mode_t)>("fchmod");
    WHOLE(is_ours(file), "fchmod", real(file, bits))
}
int fchmodat(int folder, const char* path, mode_t bits, int flags) {
    static auto real = next<int(int, const char*, mode_t, int)>("fchmodat");
    WHOLE(is_ours(folder, path), "chmod", real(folder, path, bits, flags))
}
int utimensat(int folder, const char* path, const struct timespec times[2], int flags) {
    static auto real = next<int(int, const char*, const struct timespec*, int)>("utimensat");
    WHOLE(is_ours(folder, path), "utimensat", real(folder, path, times, flags))
}

#define OPENED(real_call)                                                             \
    mode_t bits = 0;                                                                  \
    if (flags & (O_CREAT | O_TMPFILE)) {                                              \
        va_list more;                                                                 \
        va_start(more, flags);                                                        \
        bits = va_arg(more, mode_t);                                                  \
        va_end(more);                                                                 \
    }                                                                                 \
    WHOLE((flags & (O_CREAT | O_TRUNC)) && is_ours(folder, path), "open", real_call)

int open(const char* path, int flags, ...) {
    static auto real = next<int(const char*, int, mode_t)>("open");
    int folder = AT_FDCWD;
    OPENED(real(path, flags, bits))
}
int open64(const char* path, int flags, ...) {
    static auto real = next<int(const char*, int, mode_t)>("open64");
    int folder = AT_FDCWD;
    OPENED(real(path, flags, bits))
}
int openat(int folder, const char* path, int flags, ...) {
    static auto real = next<int(int, const char*, int, mode_t)>("openat");
    OPENED(real(folder, path, flags, bits))
}
int openat64(int folder, const char* path, int flags, ...) {
    static auto real = next<int(int, const char*, int, mode_t)>("openat64");
    OPENED(real(folder, path, flags, bits))
}
FILE* fopen64(const char* path, const char* how) {
    static auto real = next<FILE*(const char*, const char*)>("fopen64");
    if (how[0] == 'r' || !is_ours(AT_FDCWD, path)) return real(path, how);
    bool now = hit("fopen");
    if (now && mode == fails) return errno = number, nullptr;
    FILE* file = real(path, how);
    if (now && (mode == after || mode == torn)) die();
    return file;
}
}
