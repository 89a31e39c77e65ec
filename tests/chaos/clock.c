/* A clock of its own for the processes of one machine of a chaos run.

   A process that loads this library with LD_PRELOAD reads the time of day of the real clock plus a number of seconds.
   The file that CHAOS_CLOCK names contains this number, 8 bytes, so another process can step the clock at any moment.
   Only the time of day is stepped, as by a person or a time server: durations use another clock. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *step;
static int (*next)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *step, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED)
        step = found;
    if (file >= 0)
        close(file);
    next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t clock, struct timespec *moment) {
    int failed = next ? next(clock, moment) : (int)syscall(SYS_clock_gettime, clock, moment);
    if (!failed && step && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        moment->tv_sec += *step;
    return failed;
}

int gettimeofday(struct timeval *restrict moment, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    moment->tv_sec = now.tv_sec;
    moment->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *moment) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (moment)
        *moment = now.tv_sec;
    return now.tv_sec;
}
