/* A libEGL.so (and, under a second name, libGLESv2.so) that stands between an application and the
 * system's: it passes everything on, and injects the fault that GPUFAULT asks for.
 *
 * Point     calls counted there
 * load      the library's constructor
 * instance  eglInitialize
 * enumerate asking for a display; for lies about names, lists and limits the question itself
 * create    eglCreateContext, eglMakeCurrent of a context
 * allocate  glTexImage2D, glBufferData
 * compile   glCompileShader, glLinkProgram
 * submit    glDraw*, glDispatchCompute, glFlush
 * read      glReadPixels, glMapBufferRange, glClientWaitSync, eglClientWaitSync, glFinish
 * teardown  eglDestroyContext
 * finish    eglTerminate, and the end of the process
 * A fault that only some of these calls can show is counted at those alone.
 *
 * GPUFAULT_EGL, GPUFAULT_GLES   the libraries below (libEGL.so.1, libGLESv2.so.2)
 * GPUFAULT_MANIFEST             the only vendor manifest that a libglvnd below is to find
 * GPUFAULT_TEXELS               drawings and reads of fewer pixels stay as they are
 *
 * Give applications the folder's libEGL.so; every function is found by eglGetProcAddress, and those
 * of EGL's core by name as well.
 */
#include "fault.h"

#include "gl_lies.h"
#include <dlfcn.h>

typedef void (*function)(void);

enum {
    NEUTRAL = 1,  /* ends the process or takes time: any call can show it */
    ERRORS = 2,   /* an error number of OpenGL */
    EGL_CODE = 4, /* an error number of EGL */
    WAIT = 8,     /* an answer of a wait */
    REFUSAL = 16, /* a shader or program that does not build */
    SWALLOW = 32, /* work that is accepted and not done */
    NUMBERS = 64, /* other numbers than those the driver gave */
    TEXT = 128,   /* another shader than the one given */
    INIT = 256, RESET = 512, LIES = 1024, HANDLE = 2048, NO_MAP = 4096,
};

static const struct {
    const char *name;
    int kinds;
} api_faults[] = {
    {"lost", ERRORS | EGL_CODE}, {"oom-device", ERRORS},
    {"endless-errors", ERRORS}, {"oom-host", EGL_CODE}, {"bad-handle", HANDLE},
    {"wait-failed", WAIT}, {"wait-timeout", WAIT},
    {"compile-failed", REFUSAL}, {"compile-failed-huge-log", REFUSAL},
    {"compile-failed-empty-log", REFUSAL}, {"compile-failed-escape-log", REFUSAL},
    {"compile-failed-negative-log", REFUSAL}, {"compile-failed-lying-log", REFUSAL},
    {"link-failed", REFUSAL}, {"untouched-output", SWALLOW},
    {"wrong", NUMBERS | TEXT}, {"zero-output", NUMBERS | SWALLOW}, {"nan", NUMBERS},
    {"unstable", NUMBERS}, {"stale", NUMBERS | SWALLOW}, {"init-failed", INIT},
    {"torn-output", NUMBERS}, {"unstable-zero", NUMBERS}, {"reset", RESET}, {"map-failed", NO_MAP},
    {"name-null", LIES}, {"name-empty", LIES}, {"name-huge", LIES}, {"name-escape", LIES}, {"name-json", LIES},
    {"name-changing", LIES}, {"limits-huge", LIES}, {"limits-zero", LIES},
    {"limits-negative", LIES}, {"limits-lying", LIES}, {"extensions-huge", LIES},
    {"extensions-endless", LIES}, {"extensions-negative", LIES}, {"extensions-null", LIES},
};

static int asked_kinds(void) {
    static volatile int known;
    if (known) return known;
    int kinds = fault_begins("code") ? ERRORS | EGL_CODE | WAIT : NEUTRAL;
    for (size_t i = 0; i < sizeof api_faults / sizeof *api_faults; i++)
        if (fault_is(api_faults[i].name)) kinds = api_faults[i].kinds;
    return known = kinds;
}

/* Count a call that can show these kinds of faults. Returns 1 if it is to show one of the API;
 * what needs no API was carried out. */
static int due(const char *point, int kinds) {
    int asked = asked_kinds();
    uint64_t call = asked & (kinds | NEUTRAL) ? fault_due(point) : 0;
    if (call == 0) return 0;
    if (asked == NEUTRAL) fault_act(point, call);
    else fault_log(point, call);
    return asked != NEUTRAL;
}

/* --- the libraries below ---------------------------------------------------------------------- */

static void *egl_library, *gles_library;

static void *open_below(const char *variable, const char *usual) {
    const char *given = getenv(variable);
    void *found = dlopen(given && *given ? given : usual, RTLD_NOW | RTLD_LOCAL);
    if (found == NULL) fprintf(stderr, "gl_interposer: %s\n", dlerror());
    return found;
}

/* Make the loader below find GPUFAULT_MANIFEST alone: it looks once, when it is first asked. */
static void choose_vendor(void) {
    static const char list[] = "__EGL_VENDOR_LIBRARY_FILENAMES";
    const char *wanted = getenv("GPUFAULT_MANIFEST"), *given = getenv(list);
    void *ask = egl_library ? dlsym(egl_library, "eglQueryString") : NULL;
    if (wanted == NULL || *wanted == '\0' || ask == NULL) return;
    char *before = given ? strdup(given) : NULL;
    setenv(list, wanted, 1);
    ((const char *(*)(void *, int))ask)(NULL, 0x3055); /* EGL_EXTENSIONS, without a display */
    if (before) setenv(list, before, 1);
    else unsetenv(list);
    free(before);
}

static void at_end(void) { due("finish", NEUTRAL); }

__attribute__((constructor)) static void loaded(void) {
    if (asked_kinds() == NEUTRAL) due("load", NEUTRAL);
    atexit(at_end); /* as drivers in C++ do, for their static objects */
    egl_library = open_below("GPUFAULT_EGL", "libEGL.so.1");
    gles_library = open_below("GPUFAULT_GLES", "libGLESv2.so.2");
    choose_vendor();
}

static function below(const char *name) {
    void *found = NULL;
    if (strncmp(name, "egl", 3) == 0 && egl_library) found = dlsym(egl_library, name);
    if (found == NULL && egl_library) {
        void *(*get)(const char *) = (void *(*)(const char *))dlsym(egl_library, "eglGetProcAddress");
        if (get != NULL) found = get(name);
    }
    if (found == NULL && gles_library) found = dlsym(gles_library, name);
    return (function)found;
}

/* The function below, found once. */
#define REAL(name) \
    ({ static function kept_; if (kept_ == NULL) kept_ = below(#name); kept_; })
#define CALL(result, name, types, ...) ((result(*) types)REAL(name))(__VA_ARGS__)

/* --- errors that were made up ----------------------------------------------------------------- */

enum { LOST = 0x0507, NO_MEMORY = 0x0505, INVALID = 0x0502, MANY = 64 };

static __thread unsigned pending_gl, pending_egl;
static volatile int errors_for_ever;
static void *volatile lost_contexts[MANY]; /* by number; one that is made anew is not lost */

static void *current(void) { return CALL(void *, eglGetCurrentContext, (void)); }

static int is_lost(void *context) {
    for (int i = 0; i < MANY; i++)
        if (context != NULL && lost_contexts[i] == context) return 1;
    return 0;
}

static void lose(void *context) {
    for (int i = 0; i < MANY && !is_lost(context); i++)
        if (lost_contexts[i] == NULL) lost_contexts[i] = context;
}

static void regain(void *context) {
    for (int i = 0; i < MANY; i++)
        if (lost_contexts[i] == context) lost_contexts[i] = NULL;
}

/* The number that `code4660` stands for. */
static unsigned fault_code(void) { return (unsigned)atoi(fault_asked.name + 4); }

/* Leave the error that the fault asked for stands for. */
static void fail(void) {
    if (fault_is("lost")) lose(current());
    else if (fault_is("endless-errors")) errors_for_ever = 1;
    else pending_gl = fault_is("oom-device") ? NO_MEMORY : fault_code();
}

static unsigned my_glGetError(void) {
    unsigned found = CALL(unsigned, glGetError, (void));
    if (is_lost(current())) return LOST;
    if (errors_for_ever) return INVALID;
    if (pending_gl) found = pending_gl;
    pending_gl = 0;
    return found;
}

static unsigned reset_status(unsigned (*ask)(void)) {
    unsigned found = ask ? ask() : 0;
    if (is_lost(current())) return 0x8254; /* another context did it */
    return due("submit", RESET) ? 0x8255 : found;
}
static unsigned my_glGetGraphicsResetStatus(void) {
    return reset_status((unsigned (*)(void))REAL(glGetGraphicsResetStatus));
}
static unsigned my_glGetGraphicsResetStatusKHR(void) {
    return reset_status((unsigned (*)(void))REAL(glGetGraphicsResetStatusKHR));
}
static unsigned my_glGetGraphicsResetStatusEXT(void) {
    return reset_status((unsigned (*)(void))REAL(glGetGraphicsResetStatusEXT));
}

/* --- EGL -------------------------------------------------------------------------------------- */

#define VISIBLE __attribute__((visibility("protected"))) /* ours are called, whoever else has such */

static int refuse_egl(void) {
    pending_egl = fault_is("lost") ? 0x300E : fault_is("oom-host") ? 0x3003 : fault_code();
    return 0;
}

VISIBLE int eglGetError(void) {
    int found = CALL(int, eglGetError, (void));
    if (pending_egl) found = (int)pending_egl;
    pending_egl = 0;
    return found;
}

/* Both of them are asked for a display in the same way. */
#define DISPLAY(name) \
    VISIBLE void *name(uintptr_t platform, void *native, const void *wanted) { \
        due("enumerate", NEUTRAL); \
        return CALL(void *, name, (uintptr_t, void *, const void *), platform, native, wanted); \
    }
DISPLAY(eglGetPlatformDisplay)
DISPLAY(eglGetPlatformDisplayEXT)
DISPLAY(eglGetDisplay)

VISIBLE unsigned eglInitialize(void *display, int *major, int *minor) {
    if (due("instance", INIT)) {
        pending_egl = 0x3001; /* EGL_NOT_INITIALIZED */
        return 0;
    }
    return CALL(unsigned, eglInitialize, (void *, int *, int *), display, major, minor);
}

VISIBLE void *eglCreateContext(void *display, void *config, void *share, const int *wanted) {
    if (due("create", EGL_CODE | HANDLE)) {
        if (fault_is("bad-handle")) return (void *)(uintptr_t)0xDEAD0;
        refuse_egl();
        return NULL;
    }
    void *made = CALL(void *, eglCreateContext, (void *, void *, void *, const int *), display, config,
                      share, wanted);
    if (made != NULL) regain(made);
    return made;
}

VISIBLE unsigned eglMakeCurrent(void *display, void *draw, void *read, void *context) {
    if (context != NULL && due("create", EGL_CODE)) return (unsigned)refuse_egl();
    return CALL(unsigned, eglMakeCurrent, (void *, void *, void *, void *), display, draw, read, context);
}

VISIBLE unsigned eglDestroyContext(void *display, void *context) {
    due("teardown", NEUTRAL);
    return CALL(unsigned, eglDestroyContext, (void *, void *), display, context);
}

VISIBLE unsigned eglTerminate(void *display) {
    due("finish", NEUTRAL);
    return CALL(unsigned, eglTerminate, (void *), display);
}

/* Nonzero where a wait is to be answered with what it leaves in `answer`. */
static int wait_lie(unsigned failed, unsigned timeout, unsigned *answer) {
    if (!due("read", WAIT | ERRORS)) return 0;
    *answer = fault_is("wait-timeout") ? timeout : failed;
    if (fault_begins("code")) *answer = fault_code();
    else if (asked_kinds() & ERRORS) fail();
    return 1;
}

static int egl_wait(function below_, void *display, void *sync, int flags, uint64_t limit) {
    unsigned answer;
    if (wait_lie(0, 0x30F5, &answer)) return (int)answer;
    return ((int (*)(void *, void *, int, uint64_t))below_)(display, sync, flags, limit);
}
VISIBLE int eglClientWaitSync(void *display, void *sync, int flags, uint64_t limit) {
    return egl_wait(REAL(eglClientWaitSync), display, sync, flags, limit);
}
VISIBLE int eglClientWaitSyncKHR(void *display, void *sync, int flags, uint64_t limit) {
    return egl_wait(REAL(eglClientWaitSyncKHR), display, sync, flags, limit);
}

/* The rest of EGL's core goes on as it comes: every argument and result is a word, five at most. */
#define PASS(name) \
    VISIBLE void *name(void *a, void *b, void *c, void *d, void *e) { \
        return CALL(void *, name, (void *, void *, void *, void *, void *), a, b, c, d, e); \
    }
PASS(eglBindAPI) PASS(eglBindTexImage) PASS(eglChooseConfig) PASS(eglCopyBuffers)
PASS(eglCreateImage) PASS(eglCreatePbufferFromClientBuffer) PASS(eglCreatePbufferSurface)
PASS(eglCreatePixmapSurface) PASS(eglCreatePlatformPixmapSurface)
PASS(eglCreatePlatformWindowSurface) PASS(eglCreateSync) PASS(eglCreateWindowSurface)
PASS(eglDestroyImage) PASS(eglDestroySurface) PASS(eglDestroySync) PASS(eglGetConfigAttrib)
PASS(eglGetConfigs) PASS(eglGetCurrentContext) PASS(eglGetCurrentDisplay)
PASS(eglGetCurrentSurface) PASS(eglGetSyncAttrib)
PASS(eglQueryAPI) PASS(eglQueryContext) PASS(eglQueryString) PASS(eglQuerySurface)
PASS(eglReleaseTexImage) PASS(eglReleaseThread) PASS(eglSurfaceAttrib) PASS(eglSwapBuffers)
PASS(eglSwapInterval) PASS(eglWaitClient) PASS(eglWaitGL) PASS(eglWaitNative) PASS(eglWaitSync)

#include "gl_calls.h"

VISIBLE function eglGetProcAddress(const char *name) {
    function real = below(name);
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++)
        if (strcmp(mine[i].name, name) == 0) return real ? mine[i].call : NULL;
    return real;
}
