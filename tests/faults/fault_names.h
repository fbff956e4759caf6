/* Every name and point that GPUFAULT may hold; included by fault.h alone. `exit`, `quit` and `code`
 * with a number after them are names, too. */
#ifndef FAULT_NAMES_H
#define FAULT_NAMES_H
#ifndef FAULT_MORE_NAMES
#define FAULT_MORE_NAMES
#endif
#ifndef FAULT_MORE_POINTS
#define FAULT_MORE_POINTS
#endif

/* Faults that need no API. */
static const char *const fault_plain[] = {
    "nothing", "segv", "bus", "ill", "fpe", "abort", "stackoverflow", "hang", "spin", "slow",
    "leak-lock", "leak-loader-lock", "flood", "close-fds", "chdir", "setenv", "signal-mask",
    "denormals", "daemon",
};

/* Those that a carrier has to take part in, or the manifest that names it. */
static const char *const fault_others[] = {
    "missing-library", "missing-symbol", "wrong-format", "bad-manifest",
    "lost", "lost-running", "oom-host", "oom-device", "init-failed", "incomplete", "map-failed", "compile-failed",
    "wrong", "wrong-mul", "untouched-output", "zero-output", "torn-output", "nan", "unstable",
    "unstable-zero", "stale",
    "devices-none", "devices-many", "devices-bad", "devices-incomplete",
    "name-no-nul", "name-bad-utf8", "name-escape", "name-json", "name-empty", "name-null",
    "name-huge", "name-changing", "limits-zero", "limits-huge", "limits-negative", "limits-lying",
    "queues-huge", "queues-none", "queues-no-compute", "memory-huge", "memory-none", "memory-index",
    "extensions-huge", "extensions-incomplete", "extensions-endless", "extensions-negative",
    "extensions-null", "refused", "version-odd", "configs-none", "configs-huge",
    "configs-negative", "configs-bad", "strings-escape", "strings-huge", "strings-null",
    "bad-handle", "endless-errors", "reset", "wait-failed", "wait-timeout", "link-failed",
    "compile-failed-huge-log", "compile-failed-empty-log", "compile-failed-escape-log",
    "compile-failed-negative-log", "compile-failed-lying-log", FAULT_MORE_NAMES
};

static const char *const fault_points[] = {
    "load", "instance", "enumerate", "create", "allocate", "compile", "submit", "read", "teardown",
    "finish", "unload", FAULT_MORE_POINTS
};
#endif
