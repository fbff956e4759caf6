/* A vendor library of the vendor-neutral EGL loader (libglvnd), with a good driver's below it: what
 * can go wrong before there is a context. A manifest names it, __EGL_VENDOR_LIBRARY_FILENAMES names
 * the manifest.
 *
 * Point     calls counted there
 * load      the library's constructor, __egl_Main
 * instance  eglInitialize
 * enumerate asking for a display, eglChooseConfig; for lies the question itself
 * create    eglCreateContext
 * finish    eglTerminate, and the end of the process
 * A fault that only some of these calls can show is counted at those alone.
 *
 * GPUFAULT_VENDOR   the vendor library below (libEGL_mesa.so.0)
 */
#include "fault.h"

#include "gl_lies.h"
#include <dlfcn.h>

enum { MANY = 100000 };

static const char *const own_faults[] = {
    "refused", "init-failed", "version-odd", "devices-none", "devices-bad", "devices-many",
    "configs-none", "configs-huge", "configs-negative", "configs-bad",
    "strings-escape", "strings-huge", "strings-null",
};

static int is_own(void) {
    for (size_t i = 0; i < sizeof own_faults / sizeof *own_faults; i++)
        if (fault_is(own_faults[i])) return 1;
    return 0;
}

/* Whether this fault is due at this call, which can show it. */
static int due(const char *point, const char *name) {
    uint64_t call = fault_is(name) ? fault_due(point) : 0;
    if (call != 0) fault_log(point, call);
    return call != 0;
}

/* A call that shows those faults that need no API. */
static void pass(const char *point) {
    if (!is_own()) fault_point(point);
}

static void at_end(void) { pass("finish"); }

__attribute__((constructor)) static void loaded(void) {
    pass("load");
    atexit(at_end); /* as drivers in C++ do, for their static objects */
}

/* The functions that a vendor library gives to the loader, as far as they matter here: the order is
 * that of the loader's interface, version 0. */
typedef struct {
    void *(*get_platform_display)(unsigned platform, void *native, const intptr_t *attributes);
    unsigned (*supports_api)(unsigned api);
    const char *(*vendor_string)(int name);
    void *(*get_proc_address)(const char *name);
    void *(*dispatch_address)(const char *name);
    void (*set_dispatch_index)(const char *name, int index);
} vendor_table;

static vendor_table real;

#define REAL(name, result, ...) ((result(*)(__VA_ARGS__))real.get_proc_address(#name))

static void *my_get_platform_display(unsigned platform, void *native, const intptr_t *attributes) {
    pass("enumerate");
    if (due("enumerate", "devices-none")) return NULL;
    if (due("enumerate", "devices-bad")) return (void *)(uintptr_t)0xDEAD0;
    return real.get_platform_display(platform, native, attributes);
}

static const char *lying_string(const char *truth) {
    if (due("enumerate", "strings-null")) return NULL;
    if (due("enumerate", "strings-escape")) return escape_text;
    return due("enumerate", "strings-huge") ? huge_text('x', "EGL_") : truth;
}

static const char *my_vendor_string(int name) {
    return due("enumerate", "strings-null") ? NULL : real.vendor_string(name);
}

static const char *my_eglQueryString(void *display, int name) {
    return lying_string(REAL(eglQueryString, const char *, void *, int)(display, name));
}

static unsigned my_eglInitialize(void *display, int *major, int *minor) {
    pass("instance");
    if (due("instance", "init-failed")) return 0;
    unsigned done = REAL(eglInitialize, unsigned, void *, int *, int *)(display, major, minor);
    if (done && due("instance", "version-odd")) {
        if (major) *major = INT32_MAX;
        if (minor) *minor = -1;
    }
    return done;
}

static unsigned my_eglChooseConfig(void *display, const int *wanted, void **found, int size,
                                   int *count) {
    pass("enumerate");
    unsigned done = REAL(eglChooseConfig, unsigned, void *, const int *, void **, int, int *)(
        display, wanted, found, size, count);
    if (!done || count == NULL) return done;
    if (due("enumerate", "configs-none")) *count = 0;
    if (due("enumerate", "configs-huge")) *count = INT32_MAX;
    if (due("enumerate", "configs-negative")) *count = -1;
    if (due("enumerate", "configs-bad") && found && size > 0) found[0] = (void *)(uintptr_t)0xDEAD0;
    return done;
}

static void *my_eglCreateContext(void *display, void *config, void *share, const int *wanted) {
    pass("create");
    return REAL(eglCreateContext, void *, void *, void *, void *, const int *)(display, config, share,
                                                                              wanted);
}

static unsigned my_eglQueryDevices(int size, void **devices, int *count) {
    unsigned done = REAL(eglQueryDevicesEXT, unsigned, int, void **, int *)(size, devices, count);
    if (!done || count == NULL || !due("enumerate", "devices-many")) return done;
    for (int i = *count; devices != NULL && i < size && i < MANY; i++) devices[i] = devices[0];
    *count = devices == NULL || size > MANY ? MANY : size;
    return done;
}

static unsigned my_eglTerminate(void *display) {
    pass("finish");
    return REAL(eglTerminate, unsigned, void *)(display);
}

static const struct {
    const char *name;
    void *call;
} mine[] = {
    {"eglQueryString", (void *)my_eglQueryString},
    {"eglInitialize", (void *)my_eglInitialize},
    {"eglChooseConfig", (void *)my_eglChooseConfig},
    {"eglCreateContext", (void *)my_eglCreateContext},
    {"eglQueryDevicesEXT", (void *)my_eglQueryDevices},
    {"eglTerminate", (void *)my_eglTerminate},
};

static void *my_get_proc_address(const char *name) {
    void *found = real.get_proc_address(name);
    for (size_t i = 0; found && i < sizeof mine / sizeof *mine; i++)
        if (strcmp(mine[i].name, name) == 0) return mine[i].call;
    return found;
}

__attribute__((visibility("default"))) unsigned __egl_Main(uint32_t version, const void *exports,
                                                           void *vendor, vendor_table *imports) {
    typedef unsigned entry(uint32_t, const void *, void *, vendor_table *);
    pass("load");
    if (due("load", "refused")) return 0;
    const char *given = getenv("GPUFAULT_VENDOR");
    void *library = dlopen(given && *given ? given : "libEGL_mesa.so.0", RTLD_NOW | RTLD_LOCAL);
    entry *below = library ? (entry *)dlsym(library, "__egl_Main") : NULL;
    if (below == NULL || !below(version, exports, vendor, imports)) {
        fprintf(stderr, "egl_vendor: no driver below: %s\n", library ? "it refuses" : dlerror());
        return 0;
    }
    real = *imports;
    imports->get_platform_display = my_get_platform_display;
    imports->vendor_string = my_vendor_string;
    imports->get_proc_address = my_get_proc_address;
    return 1;
}
