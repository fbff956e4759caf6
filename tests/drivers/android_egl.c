/* A libEGL as Android's: no platforms of Mesa's or of devices, and where ANDROID_EGL says so no
 * contexts without a surface, or no addresses of core functions (EGL 1.4). All else is the
 * system's EGL, which this is linked to. Surfaces that are made are counted in ANDROID_SURFACES. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *(*any)();

static any real(const char *name) { return (any)dlsym(RTLD_NEXT, name); }

static int is_told(const char *word) {
    const char *words = getenv("ANDROID_EGL");
    return words && strstr(words, word);
}

const char *eglQueryString(void *display, int name) {
    static char text[4096];
    const char *told = ((const char *(*)(void *, int))real("eglQueryString"))(display, name);
    if (name != 0x3055 || !told) return told;
    if (!display) return "EGL_EXT_client_extensions";
    char *at;
    snprintf(text, sizeof text, "%s", told);
    if (is_told("surface") && (at = strstr(text, "EGL_KHR_surfaceless_context"))) memset(at, 'x', 27);
    return text;
}

void *eglGetProcAddress(const char *name) {
    size_t size = strlen(name);
    const char *end = size > 3 ? name + size - 3 : name;
    int is_core = strcmp(end, "KHR") && strcmp(end, "EXT") && strcmp(end, "OES");
    if (is_told("core") && !strncmp(name, "gl", 2) && is_core) return NULL;
    return ((void *(*)(const char *))real("eglGetProcAddress"))(name);
}

void *eglCreatePbufferSurface(void *display, void *config, const int *attributes) {
    const char *path = getenv("ANDROID_SURFACES");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) fprintf(file, "%d x %d\n", attributes[1], attributes[3]), fclose(file);
    return ((void *(*)(void *, void *, const int *))real("eglCreatePbufferSurface"))(
        display, config, attributes);
}
