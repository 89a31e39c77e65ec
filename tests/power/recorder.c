/* Records what a process writes to the files of one folder, and what it waits for.

   A process that loads this library with LD_PRELOAD appends a record to the file that POWER_RECORD names for each call
   that changes a file in the folder that POWER_FOLDER names, or that makes the disk keep it. A lock is held around each
   call and its record, so the order of the records is the order in which the calls took effect. `disk.py` reads them. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *folder;
static size_t folder_size;
static int record = -1;

struct __attribute__((packed)) head {
    char kind;
    uint16_t path_size, to_size;
    int64_t offset;
    uint64_t size;
};

#define NEXT(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("POWER_RECORD");
    folder = getenv("POWER_FOLDER");
    if (!path || !folder)
        return;
    folder_size = strlen(folder);
    record = NEXT(open)(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static const char *inside(const char *path) {
    size_t size = strlen(path);
    int is_deleted = size > 10 && !strcmp(path + size - 10, " (deleted)");
    if (strncmp(path, folder, folder_size) || (path[folder_size] && path[folder_size] != '/') || is_deleted)
        return NULL;
    return path + folder_size;
}

/* The path of an open file within the folder, or NULL. */
static const char *path_of(int fd, char *room) {
    char link[40];
    if (record < 0)
        return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, room, PATH_MAX - 1);
    if (size < 0)
        return NULL;
    room[size] = 0;
    return inside(room);
}

/* The path of a name within the folder, or NULL. The name itself need not exist; its folder does. */
static const char *named(const char *name, char *room) {
    char parent[PATH_MAX];
    if (record < 0 || strlen(name) >= PATH_MAX)
        return NULL;
    const char *slash = strrchr(name, '/');
    const char *last = slash ? slash + 1 : name;
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - name) : 1, slash ? name : ".");
    if (!realpath(*parent ? parent : "/", room) || strlen(room) + strlen(last) + 2 > PATH_MAX)
        return NULL;
    strcat(strcat(room, "/"), last);
    return inside(room);
}

static void note(char kind, const char *path, const char *to, int64_t offset, const void *data, size_t size) {
    struct head head = {kind, strlen(path), strlen(to), offset, size};
    struct iovec parts[4] = {
        {&head, sizeof head}, {(void *)path, head.path_size}, {(void *)to, head.to_size}, {(void *)data, data ? size : 0}};
    if (writev(record, parts, 4) < 0)
        abort();
}

#define RECORDED(condition, call, ...)                                                                                 \
    do {                                                                                                               \
        pthread_mutex_lock(&lock);                                                                                     \
        result = call;                                                                                                 \
        if (condition)                                                                                                 \
            note(__VA_ARGS__);                                                                                         \
        pthread_mutex_unlock(&lock);                                                                                   \
        return result;                                                                                                 \
    } while (0)

ssize_t write(int fd, const void *data, size_t size) {
    char room[PATH_MAX];
    const char *path = path_of(fd, room);
    ssize_t result;
    if (!path)
        return NEXT(write)(fd, data, size);
    struct stat now;
    int is_appended = fcntl(fd, F_GETFL) & O_APPEND;
    int64_t offset = is_appended && !fstat(fd, &now) ? now.st_size : lseek(fd, 0, SEEK_CUR);
    RECORDED(result > 0, NEXT(write)(fd, data, size), 'w', path, "", offset, data, result);
}

#define PWRITE(name, type)                                                                                             \
    ssize_t name(int fd, const void *data, size_t size, type offset) {                                                 \
        char room[PATH_MAX];                                                                                           \
        const char *path = path_of(fd, room);                                                                          \
        ssize_t result;                                                                                                \
        if (!path)                                                                                                     \
            return NEXT(name)(fd, data, size, offset);                                                                 \
        RECORDED(result > 0, NEXT(name)(fd, data, size, offset), 'w', path, "", offset, data, result);                 \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define SYNC(name)                                                                                                     \
    int name(int fd) {                                                                                                 \
        char room[PATH_MAX];                                                                                           \
        const char *path = path_of(fd, room);                                                                          \
        int result;                                                                                                    \
        if (!path)                                                                                                     \
            return NEXT(name)(fd);                                                                                     \
        RECORDED(!result, NEXT(name)(fd), 's', path, "", 0, NULL, 0);                                                  \
    }
SYNC(fsync)
SYNC(fdatasync)

#define FTRUNCATE(name, type)                                                                                          \
    int name(int fd, type size) {                                                                                      \
        char room[PATH_MAX];                                                                                           \
        const char *path = path_of(fd, room);                                                                          \
        int result;                                                                                                    \
        if (!path)                                                                                                     \
            return NEXT(name)(fd, size);                                                                               \
        RECORDED(!result, NEXT(name)(fd, size), 't', path, "", size, NULL, 0);                                         \
    }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                                        \
        va_end(rest);                                                                                                  \
        char room[PATH_MAX];                                                                                           \
        const char *within = flags & (O_CREAT | O_TRUNC) ? named(path, room) : NULL;                                   \
        int result;                                                                                                    \
        if (!within)                                                                                                   \
            return NEXT(name)(path, flags, mode);                                                                      \
        RECORDED(result >= 0, NEXT(name)(path, flags, mode), flags & O_TRUNC ? 'e' : 'c', within, "", 0, NULL, 0);     \
    }
OPEN(open)
OPEN(open64)

int unlink(const char *path) {
    char room[PATH_MAX];
    const char *within = named(path, room);
    int result;
    if (!within)
        return NEXT(unlink)(path);
    RECORDED(!result, NEXT(unlink)(path), 'u', within, "", 0, NULL, 0);
}

int rename(const char *from, const char *to) {
    char room[PATH_MAX], other[PATH_MAX];
    const char *within = named(from, room), *target = named(to, other);
    int result;
    if (!within || !target)
        return NEXT(rename)(from, to);
    RECORDED(!result, NEXT(rename)(from, to), 'r', within, target, 0, NULL, 0);
}

int mkdir(const char *path, mode_t mode) {
    char room[PATH_MAX];
    const char *within = named(path, room);
    int result;
    if (!within)
        return NEXT(mkdir)(path, mode);
    RECORDED(!result, NEXT(mkdir)(path, mode), 'm', within, "", 0, NULL, 0);
}
