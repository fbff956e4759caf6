/* The OpenGL functions that the interposer takes part in; included by gl_interposer.c alone. */

static long least_texels(void) {
    const char *given = getenv("GPUFAULT_TEXELS");
    return given ? atol(given) : 0;
}

/* --- memory ----------------------------------------------------------------------------------- */

static void my_glTexImage2D(unsigned target, int level, int internal, int width, int height,
                            int border, unsigned format, unsigned type, const void *data) {
    if (due("allocate", ERRORS)) {
        fail();
        return;
    }
    CALL(void, glTexImage2D, (unsigned, int, int, int, int, int, unsigned, unsigned, const void *),
         target, level, internal, width, height, border, format, type, data);
}

static void my_glBufferData(unsigned target, intptr_t size, const void *data, unsigned usage) {
    if (due("allocate", ERRORS)) {
        fail();
        return;
    }
    CALL(void, glBufferData, (unsigned, intptr_t, const void *, unsigned), target, size, data, usage);
}

/* --- shaders ---------------------------------------------------------------------------------- */

enum { STATUS = 1, LOG_LENGTH = 0x8B84, COMPILE_STATUS = 0x8B81, LINK_STATUS = 0x8B82, NAMES = 1 << 16 };
static volatile unsigned char refused[NAMES]; /* shaders and programs share their names */

static void my_glShaderSource(unsigned shader, int count, const char *const *texts,
                              const int *lengths) {
    typedef void source(unsigned, int, const char *const *, const int *);
    source *real = (source *)REAL(glShaderSource);
    size_t size = 1;
    char *whole = NULL;
    if (asked_kinds() & TEXT && fault_at("compile")) {
        for (int i = 0; i < count; i++)
            size += lengths && lengths[i] >= 0 ? (size_t)lengths[i] : strlen(texts[i]);
        whole = calloc(1, size);
    }
    for (int i = 0; whole && i < count; i++)
        strncat(whole, texts[i], lengths && lengths[i] >= 0 ? (size_t)lengths[i] : strlen(texts[i]));
    const char *const changed = whole;
    if (whole && subtract(whole) && due("compile", TEXT)) real(shader, 1, &changed, NULL);
    else real(shader, count, texts, lengths);
    free(whole);
}

static void my_glCompileShader(unsigned shader) {
    if (!fault_is("wrong") && !fault_is("link-failed") && due("compile", ERRORS | REFUSAL)) {
        refused[shader % NAMES] = 1;
        if (asked_kinds() & ERRORS) fail();
        return;
    }
    refused[shader % NAMES] = 0;
    CALL(void, glCompileShader, (unsigned), shader);
}

static void my_glLinkProgram(unsigned program) {
    if (!fault_is("wrong") && !fault_begins("compile-failed") && due("compile", ERRORS | REFUSAL)) {
        refused[program % NAMES] = 1;
        if (asked_kinds() & ERRORS) fail();
        return;
    }
    refused[program % NAMES] = 0;
    CALL(void, glLinkProgram, (unsigned), program);
}

static const char *build_log(void) {
    if (fault_begins("compile-failed-huge")) return huge_text('e', "error: ");
    if (fault_begins("compile-failed-escape")) return escape_text;
    return fault_begins("compile-failed-empty") ? "" : "error: the fault kit refuses this";
}

static int build_answer(unsigned thing, unsigned what, int *value) {
    if (!refused[thing % NAMES]) return 0;
    if (what == COMPILE_STATUS || what == LINK_STATUS) *value = 0;
    else if (what != LOG_LENGTH) return 0;
    else if (fault_begins("compile-failed-negative")) *value = -1;
    else if (fault_begins("compile-failed-lying")) *value = INT32_MAX;
    else *value = *build_log() ? (int)strlen(build_log()) + 1 : 0;
    return 1;
}

static void my_glGetShaderiv(unsigned shader, unsigned what, int *value) {
    if (!build_answer(shader, what, value))
        CALL(void, glGetShaderiv, (unsigned, unsigned, int *), shader, what, value);
}
static void my_glGetProgramiv(unsigned program, unsigned what, int *value) {
    if (!build_answer(program, what, value))
        CALL(void, glGetProgramiv, (unsigned, unsigned, int *), program, what, value);
}

static void tell(int room, int *length, char *into) {
    size_t all = strlen(build_log()), some = room > 0 ? (size_t)room - 1 : 0;
    if (some > all) some = all;
    if (room > 0 && into != NULL) {
        memcpy(into, build_log(), some);
        into[some] = fault_begins("compile-failed-escape") ? '!' : '\0'; /* no end to it */
    }
    if (length != NULL) *length = (int)some;
}
static void my_glGetShaderInfoLog(unsigned shader, int room, int *length, char *into) {
    if (refused[shader % NAMES]) tell(room, length, into);
    else CALL(void, glGetShaderInfoLog, (unsigned, int, int *, char *), shader, room, length, into);
}
static void my_glGetProgramInfoLog(unsigned program, int room, int *length, char *into) {
    if (refused[program % NAMES]) tell(room, length, into);
    else CALL(void, glGetProgramInfoLog, (unsigned, int, int *, char *), program, room, length, into);
}

/* --- work ------------------------------------------------------------------------------------- */

static __thread int area[4];

static void my_glViewport(int x, int y, int width, int height) {
    const int given[4] = {x, y, width, height};
    memcpy(area, given, sizeof area);
    CALL(void, glViewport, (int, int, int, int), x, y, width, height);
}

/* Put zeros where a drawing would have gone; kinds of its targets are asked for where they can be. */
static void clear_targets(void) {
    typedef void ask(unsigned, unsigned, unsigned, int *);
    typedef void clear(unsigned, int, const void *);
    ask *kind_of = (ask *)below("glGetFramebufferAttachmentParameteriv");
    const char *version = CALL(const char *, glGetString, (unsigned), GL_NAME_VERSION);
    int is_new = version && strstr(version, "ES 2") == NULL;
    const uint32_t zeros[4] = {0, 0, 0, 0};
    for (unsigned i = 0; i < (is_new ? 4u : 0u); i++) {
        int object = 0, kind = 0;
        kind_of(0x8D40, 0x8CE0 + i, 0x8CD0, &object); /* the attachment's type of object */
        if (object == 0) break;
        kind_of(0x8D40, 0x8CE0 + i, 0x8211, &kind); /* of its components */
        const char *call = kind == GL_UINT_TYPE ? "glClearBufferuiv" : "glClearBufferfv";
        ((clear *)below(call))(0x1800, (int)i, zeros);
    }
    if (!is_new) {
        CALL(void, glClearColor, (float, float, float, float), 0.f, 0.f, 0.f, 0.f);
        CALL(void, glClear, (unsigned), 0x4000);
    }
    CALL(unsigned, glGetError, (void));
}

/* Whether a launch is not to reach the driver. */
static int swallowed(int is_draw) {
    int takes = SWALLOW | ERRORS;
    if (is_draw && (long)area[2] * area[3] < least_texels()) takes = ERRORS;
    if (fault_is("zero-output") && !is_draw) return 0;
    if ((asked_kinds() & SWALLOW && !(takes & SWALLOW)) || !due("submit", takes)) return 0;
    if (asked_kinds() & ERRORS) fail();
    if (fault_is("zero-output")) clear_targets();
    return 1;
}

static void my_glDrawArrays(unsigned mode, int first, int count) {
    if (!swallowed(1)) CALL(void, glDrawArrays, (unsigned, int, int), mode, first, count);
}
static void my_glDrawArraysInstanced(unsigned mode, int first, int count, int instances) {
    if (!swallowed(1))
        CALL(void, glDrawArraysInstanced, (unsigned, int, int, int), mode, first, count, instances);
}
static void my_glDrawElements(unsigned mode, int count, unsigned type, const void *indices) {
    if (!swallowed(1))
        CALL(void, glDrawElements, (unsigned, int, unsigned, const void *), mode, count, type, indices);
}
static void my_glDispatchCompute(unsigned x, unsigned y, unsigned z) {
    if (!swallowed(0)) CALL(void, glDispatchCompute, (unsigned, unsigned, unsigned), x, y, z);
}
static void my_glFlush(void) {
    if (due("submit", ERRORS)) fail();
    CALL(void, glFlush, (void));
}

/* --- reading ---------------------------------------------------------------------------------- */

static __thread void *shown; /* a copy that is given out in place of mapped memory */

static void my_glReadPixels(int x, int y, int width, int height, unsigned format, unsigned type,
                            void *into) {
    size_t size = (size_t)width * (size_t)height * pixel_bytes(format, type);
    int is_large = size > 0 && (long)width * height >= least_texels();
    int is_due = due("read", ERRORS | (is_large ? NUMBERS : 0));
    if (is_due && asked_kinds() & ERRORS) {
        fail();
        return;
    }
    CALL(void, glReadPixels, (int, int, int, int, unsigned, unsigned, void *), x, y, width, height,
         format, type, into);
    if (is_due && (uintptr_t)into > 65536) spoil(into, size); /* else an offset into a buffer */
}

static void *my_glMapBufferRange(unsigned target, intptr_t offset, intptr_t size, unsigned access) {
    int is_read = access & 1, is_due = is_read && due("read", ERRORS | NUMBERS | NO_MAP);
    if (is_due && asked_kinds() & (ERRORS | NO_MAP)) {
        if (asked_kinds() & ERRORS) fail();
        return NULL;
    }
    void *place = CALL(void *, glMapBufferRange, (unsigned, intptr_t, intptr_t, unsigned), target,
                       offset, size, access);
    if (!is_due || place == NULL) return place;
    free(shown);
    shown = malloc((size_t)size);
    if (shown == NULL) return place;
    memcpy(shown, place, (size_t)size);
    spoil(shown, (size_t)size);
    return shown;
}
static unsigned char my_glUnmapBuffer(unsigned target) {
    free(shown);
    shown = NULL;
    return CALL(unsigned char, glUnmapBuffer, (unsigned), target);
}

static unsigned my_glClientWaitSync(void *sync, unsigned flags, uint64_t limit) {
    unsigned answer;
    if (wait_lie(0x911D, 0x911B, &answer)) return answer;
    return CALL(unsigned, glClientWaitSync, (void *, unsigned, uint64_t), sync, flags, limit);
}
static void my_glFinish(void) {
    if (due("read", ERRORS)) fail();
    CALL(void, glFinish, (void));
}

/* --- questions -------------------------------------------------------------------------------- */

static const char *my_glGetString(unsigned name) {
    const char *truth = CALL(const char *, glGetString, (unsigned), name);
    const char *lie = lying_name(name, truth);
    if (fault_is("extensions-huge") && name == GL_NAME_EXTENSIONS) lie = huge_text('x', "GL_");
    if (fault_is("extensions-null") && name == GL_NAME_EXTENSIONS) lie = NULL;
    return lie != truth && due("enumerate", LIES) ? lie : truth;
}

static const char *my_glGetStringi(unsigned name, unsigned index) {
    if (name == GL_NAME_EXTENSIONS && fault_is("extensions-null")) return NULL; /* counted before */
    if (name == GL_NAME_EXTENSIONS && fault_begins("extensions-")) return "GL_GPUFAULT_extension";
    return CALL(const char *, glGetStringi, (unsigned, unsigned), name, index);
}

static void my_glGetIntegerv(unsigned name, int *value) {
    CALL(void, glGetIntegerv, (unsigned, int *), name, value);
    if (name == GL_COUNT_EXTENSIONS && fault_begins("extensions-") && due("enumerate", LIES)) {
        if (fault_is("extensions-huge")) *value = HUGE_LIST;
        if (fault_is("extensions-endless")) *value = INT32_MAX;
        if (fault_is("extensions-negative")) *value = -1;
    }
    if (!is_limit(name) || lying_limit(*value) == *value || !due("enumerate", LIES)) return;
    *value = (int)lying_limit(*value);
    if (name == MAX_VIEWPORT_DIMS) value[1] = (int)lying_limit(value[1]);
}
static void my_glGetInteger64v(unsigned name, int64_t *value) {
    CALL(void, glGetInteger64v, (unsigned, int64_t *), name, value);
    if (!is_limit(name) || lying_limit(*value) == *value || !due("enumerate", LIES)) return;
    *value = fault_is("limits-huge") ? INT64_MAX : lying_limit(*value);
}
static void my_glGetIntegeri_v(unsigned name, unsigned index, int *value) {
    CALL(void, glGetIntegeri_v, (unsigned, unsigned, int *), name, index, value);
    if (is_limit(name) && lying_limit(*value) != *value && due("enumerate", LIES))
        *value = (int)lying_limit(*value);
}

static const struct {
    const char *name;
    function call;
} mine[] = {
#define GL(name) {#name, (function)my_##name}
#define EGL(name) {#name, (function)name}
    GL(glGetError), GL(glGetGraphicsResetStatus), GL(glGetGraphicsResetStatusKHR),
    GL(glGetGraphicsResetStatusEXT), GL(glTexImage2D), GL(glBufferData), GL(glShaderSource),
    GL(glCompileShader), GL(glLinkProgram), GL(glGetShaderiv), GL(glGetProgramiv),
    GL(glGetShaderInfoLog), GL(glGetProgramInfoLog), GL(glViewport), GL(glDrawArrays),
    GL(glDrawArraysInstanced), GL(glDrawElements), GL(glDispatchCompute), GL(glFlush),
    GL(glReadPixels), GL(glMapBufferRange), GL(glUnmapBuffer), GL(glClientWaitSync), GL(glFinish),
    GL(glGetString), GL(glGetStringi), GL(glGetIntegerv), GL(glGetInteger64v), GL(glGetIntegeri_v),
    EGL(eglGetDisplay), EGL(eglGetPlatformDisplay), EGL(eglGetPlatformDisplayEXT),
    EGL(eglGetError), EGL(eglInitialize), EGL(eglCreateContext), EGL(eglMakeCurrent),
    EGL(eglDestroyContext), EGL(eglTerminate), EGL(eglClientWaitSync), EGL(eglClientWaitSyncKHR),
};
