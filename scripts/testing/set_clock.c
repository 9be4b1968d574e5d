/* Lets a run's processes see the system's clock set: preloaded, it adds the seconds that the file ASYNCRL_TEST_CLOCK holds.

   Monotonic clocks and the times of files stay as they are. Deadlines by the system's clock are given to the kernel,
   whose clock is not set, without what was added. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *added_s;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("ASYNCRL_TEST_CLOCK");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *found = mmap(NULL, sizeof *added_s, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED) added_s = found;
}

static long long added(void) { return added_s == NULL ? 0 : *added_s; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real == NULL ? (int)syscall(SYS_clock_gettime, clock, now) : real(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += added();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now != NULL) *now = found.tv_sec;
    return found.tv_sec;
}

/* A deadline of fewer seconds is one of a monotonic clock. */
static struct timespec in_kernels_time(const struct timespec *deadline) {
    struct timespec found = *deadline;
    if (found.tv_sec > 1000000000) found.tv_sec -= added();
    return found;
}

int sem_timedwait(sem_t *semaphore, const struct timespec *deadline) {
    static int (*real)(sem_t *, const struct timespec *);
    if (real == NULL) real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec until = in_kernels_time(deadline);
    return real(semaphore, &until);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *deadline) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (real == NULL) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    struct timespec until = in_kernels_time(deadline);
    return real(condition, mutex, &until);
}
