/* What every library of the fault kit shares: which fault is asked for, whether it is due, and those
 * faults that need no GPU API.
 *
 * GPUFAULT="name@point"       the first call at that point
 * GPUFAULT="name@point:3"     the third call
 * GPUFAULT="name@point:3+"    the third and every later call
 * GPUFAULT="name@point~0.01"  each call with this probability, drawn from GPUFAULT_SEED
 *
 * GPUFAULT_SEED     number that decides `~p` and fault_random() (default 0)
 * GPUFAULT_LOG      file that gets one line, "name@point call-number process-id", per fault carried out
 * GPUFAULT_SECONDS  length of `slow` and life of `daemon` (default 30)
 * GPUFAULT_LOCK     file that `leak-lock` locks (default: none, only the mutex is leaked)
 *
 * A name or point that nothing here knows ends the process with status 97. A known fault at a point
 * that cannot show it does nothing, and nothing is logged: lines of the log are faults that happened.
 * `nothing` is a fault that passes everything on; its lines tell that a call came by.
 *
 * Include it in one C file per library. Counters are per library and process, and atomic. Nothing
 * here allocates memory, because a fault may be carried out in a thread that holds the heap's lock.
 * Faults and points of your own: define FAULT_MORE_NAMES and FAULT_MORE_POINTS before, as lists of
 * strings that end with a comma, and call fault_log() where you carry a fault out yourself.
 */
#ifndef GPUFAULT_H
#define GPUFAULT_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fault_names.h"

#define FAULT_UNUSED __attribute__((unused))

enum { FAULT_NAME = 48, FAULT_POINTS = 32 };

static struct {
    char name[FAULT_NAME];
    char point[FAULT_NAME];
    uint64_t first, last; /* the calls at which it is due, counted from 1 */
    double chance;        /* of each call; negative: first and last decide */
    uint64_t seed;
    double seconds;
} fault_asked;

static struct {
    const char *point;
    uint64_t calls;
} fault_counts[FAULT_POINTS];

static pthread_once_t fault_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t fault_count_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t fault_gate = PTHREAD_MUTEX_INITIALIZER; /* what `leak-lock` leaks */
static volatile int fault_leaked;

#define FAULT_LISTED(list, name) fault_listed(list, sizeof(list) / sizeof *(list), name)

static int fault_listed(const char *const *list, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i], name) == 0) return 1;
    return 0;
}

/* Whether a name is `prefix` and a number. */
static int fault_numbered(const char *name, const char *prefix) {
    size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0) return 0;
    const char *digits = name + length + (name[length] == '-');
    return *digits != '\0' && strspn(digits, "0123456789") == strlen(digits);
}

/* Whether the fault asked for needs no API. */
static int fault_is_plain(void) {
    const char *name = fault_asked.name;
    return fault_numbered(name, "exit") || fault_numbered(name, "quit") ||
           FAULT_LISTED(fault_plain, name);
}

/* A wrong value must not look like a driver that has no fault. */
static void fault_usage(const char *text) {
    fprintf(stderr, "GPUFAULT is not name@point[:n[+]|~p]: %s\n", text);
    _exit(97);
}

static void fault_unknown(const char *kind, const char *text) {
    fprintf(stderr, "GPUFAULT: there is no %s '%s'\n", kind, text);
    _exit(97);
}

static void fault_parse(void) {
    const char *text = getenv("GPUFAULT");
    const char *seed = getenv("GPUFAULT_SEED"), *seconds = getenv("GPUFAULT_SECONDS");
    fault_asked.seed = seed ? strtoull(seed, NULL, 0) : 0;
    fault_asked.seconds = seconds ? strtod(seconds, NULL) : 30.0;
    fault_asked.first = fault_asked.last = 1;
    fault_asked.chance = -1.0;
    if (text == NULL || *text == '\0') return;
    const char *at = strchr(text, '@');
    if (at == NULL || at == text || at - text >= FAULT_NAME) fault_usage(text);
    size_t length = strcspn(at + 1, ":~");
    if (length == 0 || length >= FAULT_NAME) fault_usage(text);
    const char *rest = at + 1 + length;
    char *end = (char *)rest;
    if (*rest == ':') {
        fault_asked.first = fault_asked.last = strtoull(rest + 1, &end, 10);
        if (end == rest + 1 || fault_asked.first == 0) fault_usage(text);
        if (*end == '+') {
            fault_asked.last = UINT64_MAX;
            end++;
        }
    } else if (*rest == '~') {
        fault_asked.chance = strtod(rest + 1, &end);
        if (end == rest + 1 || !(fault_asked.chance >= 0.0 && fault_asked.chance <= 1.0))
            fault_usage(text);
    }
    if (*end != '\0') fault_usage(text);
    memcpy(fault_asked.name, text, (size_t)(at - text));
    memcpy(fault_asked.point, at + 1, length);
    if (!fault_is_plain() && !fault_numbered(fault_asked.name, "code") &&
        !FAULT_LISTED(fault_others, fault_asked.name))
        fault_unknown("fault", fault_asked.name);
    if (!FAULT_LISTED(fault_points, fault_asked.point)) fault_unknown("point", fault_asked.point);
}

/* Whether the fault asked for has this name. */
FAULT_UNUSED static int fault_is(const char *name) {
    pthread_once(&fault_once, fault_parse);
    return strcmp(fault_asked.name, name) == 0;
}

/* Whether its name begins so: `fault_begins("exit")`. */
FAULT_UNUSED static int fault_begins(const char *prefix) {
    pthread_once(&fault_once, fault_parse);
    return strncmp(fault_asked.name, prefix, strlen(prefix)) == 0;
}

/* Whether the fault asked for is at this point, at whatever call. */
FAULT_UNUSED static int fault_at(const char *point) {
    pthread_once(&fault_once, fault_parse);
    return fault_asked.name[0] != '\0' && strcmp(fault_asked.point, point) == 0;
}

static uint64_t fault_mix(uint64_t x) { /* splitmix64's finaliser */
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* The n-th random number of this seed. */
FAULT_UNUSED static uint64_t fault_random(uint64_t n) {
    pthread_once(&fault_once, fault_parse);
    return fault_mix(fault_mix(fault_asked.seed) ^ n);
}

/* Tell GPUFAULT_LOG that the fault asked for is carried out at this call. */
FAULT_UNUSED static void fault_log(const char *point, uint64_t call) {
    const char *path = getenv("GPUFAULT_LOG");
    if (path == NULL || *path == '\0') return;
    char line[256];
    int length = snprintf(line, sizeof line, "%s@%s %llu %ld\n", fault_asked.name, point,
                          (unsigned long long)call, (long)getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return;
    if (write(fd, line, (size_t)length) < 0) perror("GPUFAULT_LOG");
    close(fd);
}

/* Count a call at this point; its number if the fault asked for is due at it, else 0. */
FAULT_UNUSED static uint64_t fault_due(const char *point) {
    pthread_once(&fault_once, fault_parse);
    if (fault_leaked) { /* a driver whose lock is held for ever: every later call waits */
        pthread_mutex_lock(&fault_gate);
    }
    pthread_mutex_lock(&fault_count_lock);
    int i = 0;
    while (i < FAULT_POINTS - 1 && fault_counts[i].point != NULL &&
           strcmp(fault_counts[i].point, point) != 0)
        i++;
    fault_counts[i].point = point;
    uint64_t call = ++fault_counts[i].calls;
    pthread_mutex_unlock(&fault_count_lock);
    if (!fault_at(point)) return 0;
    int due = call >= fault_asked.first && call <= fault_asked.last;
    if (fault_asked.chance >= 0.0)
        due = (double)(fault_random(call) >> 11) * 0x1p-53 < fault_asked.chance;
    return due ? call : 0;
}

/* --- the faults that need no API ------------------------------------------------------------- */

static void fault_bus(void) { /* touch a mapped page that the file does not reach */
    int fd = memfd_create("gpufault", MFD_CLOEXEC);
    if (fd < 0) return;
    volatile char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) *page = 1;
}

static int fault_overflow(volatile int depth) { /* the frame must be used after the call */
    volatile char frame[4096];
    frame[0] = (char)depth;
    return depth < 0 ? 0 : fault_overflow(depth + 1) + frame[0];
}

static void fault_sleep(double seconds) {
    struct timespec rest = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&rest, &rest) != 0 && errno == EINTR) {
    }
}

/* Sleep for ever in a way that only SIGKILL ends. */
static void fault_hang(void) {
    const int polite[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGALRM, SIGPIPE};
    for (size_t i = 0; i < sizeof polite / sizeof *polite; i++) signal(polite[i], SIG_IGN);
    for (;;) fault_sleep(3600.0);
}

static void fault_flood(void) { /* 32 MiB to each of the two streams, in long lines */
    char line[8192];
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = '\n';
    for (int i = 0; i < 4096; i++)
        for (int stream = 1; stream <= 2; stream++)
            for (size_t done = 0; done < sizeof line;) {
                ssize_t n = write(stream, line + done, sizeof line - done);
                if (n > 0) done += (size_t)n;
                else if (n < 0 && errno == EAGAIN) fault_sleep(0.001); /* a pipe set non-blocking */
                else if (n < 0 && errno == EINTR) continue;
                else return;
            }
}

/* Take the lock that every later call of this library wants, and GPUFAULT_LOCK where it is set. */
static void fault_leak_lock(void) {
    const char *path = getenv("GPUFAULT_LOCK");
    if (path != NULL && *path != '\0') {
        int fd = open(path, O_RDWR | O_CREAT, 0600); /* not O_CLOEXEC: children keep it locked */
        if (fd >= 0 && flock(fd, LOCK_EX) != 0) perror("GPUFAULT_LOCK");
    }
    pthread_mutex_lock(&fault_gate);
    fault_leaked = 1;
}

static int fault_in_loader(struct dl_phdr_info *info, size_t size, void *ready) {
    (void)info, (void)size;
    *(volatile int *)ready = 1;
    fault_hang();
    return 0;
}

static void *fault_loader_thread(void *ready) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    dl_iterate_phdr(fault_in_loader, ready);
    return NULL;
}

/* Hold the dynamic linker's lock in another thread: no library can be loaded any more. */
static void fault_leak_loader_lock(void) {
    static volatile int ready;
    pthread_t thread;
    if (pthread_create(&thread, NULL, fault_loader_thread, (void *)&ready) != 0) return;
    pthread_detach(thread);
    while (!ready) fault_sleep(0.001);
}

/* Leave a process in a session of its own, which holds every descriptor it inherited. */
static void fault_daemon(void) {
    if (fork() != 0) return;
    setsid();
    fault_sleep(fault_asked.seconds);
    _exit(0);
}

/* Compilers that drivers bring like denormals as zero, and forget to put the mode back. */
static void fault_denormals(void) {
#if defined(__x86_64__)
    unsigned control = 0x1F80u | 0x8040u; /* every exception masked; flush, denormals are zero */
    __asm__ volatile("ldmxcsr %0" ::"m"(control));
#elif defined(__aarch64__)
    uint64_t control = 1u << 24;
    __asm__ volatile("msr fpcr, %0" ::"r"(control));
#endif
}

static void fault_setenv(void) {
    setenv("PATH", "/nonexistent", 1);
    setenv("HOME", "/nonexistent", 1);
    setenv("TMPDIR", "/nonexistent", 1);
    setenv("LC_ALL", "xx_XX.broken", 1);
    setenv("PYTHONHOME", "/nonexistent", 1);
    setenv("LD_PRELOAD", "/nonexistent.so", 1);
    unsetenv("VK_DRIVER_FILES");
    unsetenv("__EGL_VENDOR_LIBRARY_FILENAMES");
}

static void fault_signal_mask(void) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    for (int s = 1; s < 32; s++) signal(s, SIG_IGN);
}

static void fault_close_fds(void) {
    struct rlimit limit;
    long top = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? (long)limit.rlim_cur : 1024;
    if (top > 65536) top = 65536;
    for (int fd = 3; fd < top; fd++) close(fd);
}

static const struct {
    const char *name;
    void (*act)(void);
} fault_acts[] = {
    {"bus", fault_bus},
    {"hang", fault_hang},
    {"flood", fault_flood},
    {"leak-lock", fault_leak_lock},
    {"leak-loader-lock", fault_leak_loader_lock},
    {"daemon", fault_daemon},
    {"denormals", fault_denormals},
    {"setenv", fault_setenv},
    {"signal-mask", fault_signal_mask},
    {"close-fds", fault_close_fds},
};

/* A signal's own action first: Python's faulthandler or a driver's own handler is no excuse. */
static void fault_crash(void) {
    if (fault_is("segv")) *(volatile int *)(uintptr_t)8 = 1;
    if (fault_is("abort")) abort();
    if (fault_is("stackoverflow")) fault_overflow(0);
#if defined(__x86_64__) || defined(__i386__)
    if (fault_is("ill")) __asm__ volatile("ud2");
    if (fault_is("fpe")) __asm__ volatile("xorl %%ecx, %%ecx; movl $1, %%eax; cltd; idivl %%ecx"
                                          ::: "eax", "ecx", "edx", "cc");
#else
    if (fault_is("ill")) __builtin_trap();
    if (fault_is("fpe")) raise(SIGFPE); /* Arm's integer division does not trap */
#endif
}

/* Carry out the fault asked for, if it needs no API; otherwise return. `call` is what fault_due()
 * returned. */
FAULT_UNUSED static void fault_act(const char *point, uint64_t call) {
    pthread_once(&fault_once, fault_parse);
    /* A library without the symbol that is looked for is the whole of that fault. */
    if (fault_is("missing-symbol") && strcmp(point, "load") == 0) fault_log(point, call);
    if (!fault_is_plain()) return;
    fault_log(point, call);
    fault_crash();
    for (size_t i = 0; i < sizeof fault_acts / sizeof *fault_acts; i++)
        if (fault_is(fault_acts[i].name)) {
            fault_acts[i].act();
            return;
        }
    if (fault_begins("exit")) exit(atoi(fault_asked.name + 4));
    if (fault_begins("quit")) _exit(atoi(fault_asked.name + 4));
    if (fault_is("slow")) fault_sleep(fault_asked.seconds);
    if (fault_is("chdir") && chdir("/") != 0) perror("chdir");
    if (fault_is("spin"))
        for (volatile unsigned n = 0;; n++) {
        }
}

/* The whole of it for faults that need no API: count, and act if due. Returns the call's number if it
 * was due, else 0. */
FAULT_UNUSED static uint64_t fault_point(const char *point) {
    uint64_t call = fault_due(point);
    if (call != 0) fault_act(point, call);
    return call;
}
#endif
