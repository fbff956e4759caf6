/* A layer over any OpenCL driver (cl_loader_layers, which ocl-icd has): crashes, hangs, ends the
 * process, loses the device or has no memory, where GPUFAULT tells it to; `stuck@submit` is work that
 * never ends, while its submission returns.
 *
 * OPENCL_LAYERS=<this library> GPUFAULT=hang@submit:5 my-program
 *
 * Points: create (clCreateContext), allocate (clCreateBuffer), compile (clBuildProgram), submit
 * (clEnqueueNDRangeKernel), read (clEnqueueReadBuffer), teardown (clReleaseContext). */
#define FAULT_MORE_NAMES "stuck",
#include "fault.h"

/* Places in the table of functions that a driver gives the loader (cl_icd.h of OpenCL-Headers). */
enum { CREATE_CONTEXT = 4, RELEASE_CONTEXT = 7, QUEUE_INFO = 12, CREATE_BUFFER = 14, BUILD_PROGRAM = 30,
       READ_BUFFER = 48, ENQUEUE_KERNEL = 59, CREATE_USER_EVENT = 84 };
enum { LOST = -2 /* CL_DEVICE_NOT_AVAILABLE */, NO_MEMORY = -4 /* CL_MEM_OBJECT_ALLOCATION_FAILURE */ };

typedef void *Handle;
static void *const *next; /* the functions of the driver */
static void *table[512];

/* The number that a call is to return instead of being made; 0: it is made. */
static int32_t answer(const char *point) {
    if (!fault_point(point)) return 0;
    return fault_is("lost") ? LOST : fault_is("oom-device") ? NO_MEMORY : 0;
}

static Handle create_context(const intptr_t *properties, uint32_t count, const Handle *devices,
                             void (*notify)(const char *, const void *, size_t, void *), void *user,
                             int32_t *code) {
    int32_t instead = answer("create");
    if (instead) {
        if (code) *code = instead;
        return NULL;
    }
    Handle (*call)(const intptr_t *, uint32_t, const Handle *, void *, void *, int32_t *);
    *(void **)&call = next[CREATE_CONTEXT];
    return call(properties, count, devices, *(void **)&notify, user, code);
}

static int32_t release_context(Handle context) {
    answer("teardown");
    int32_t (*call)(Handle);
    *(void **)&call = next[RELEASE_CONTEXT];
    return call(context);
}

static Handle create_buffer(Handle context, uint64_t flags, size_t size, void *host, int32_t *code) {
    int32_t instead = answer("allocate");
    if (instead) {
        if (code) *code = instead;
        return NULL;
    }
    Handle (*call)(Handle, uint64_t, size_t, void *, int32_t *);
    *(void **)&call = next[CREATE_BUFFER];
    return call(context, flags, size, host, code);
}

static int32_t build_program(Handle program, uint32_t count, const Handle *devices, const char *options,
                             void *notify, void *user) {
    int32_t instead = answer("compile");
    if (instead) return instead;
    int32_t (*call)(Handle, uint32_t, const Handle *, const char *, void *, void *);
    *(void **)&call = next[BUILD_PROGRAM];
    return call(program, count, devices, options, notify, user);
}

/* An event that never comes, in the context of a queue. */
static Handle never(Handle queue) {
    Handle context = NULL;
    int32_t (*info)(Handle, uint32_t, size_t, void *, size_t *), code = 0;
    Handle (*create)(Handle, int32_t *);
    *(void **)&info = next[QUEUE_INFO];
    *(void **)&create = next[CREATE_USER_EVENT];
    info(queue, 0x1090 /* CL_QUEUE_CONTEXT */, sizeof context, &context, NULL);
    return create(context, &code);
}

static int32_t enqueue_kernel(Handle queue, Handle kernel, uint32_t axes, const size_t *offset,
                              const size_t *size, const size_t *local, uint32_t count,
                              const Handle *before, Handle *event) {
    int32_t (*call)(Handle, Handle, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t,
                    const Handle *, Handle *);
    *(void **)&call = next[ENQUEUE_KERNEL];
    uint64_t due = fault_point("submit");
    if (due && fault_is("lost")) return LOST;
    if (due && fault_is("stuck")) {
        fault_log("submit", due);
        Handle event_that_never_comes = never(queue);
        return call(queue, kernel, axes, offset, size, local, 1, &event_that_never_comes, event);
    }
    return call(queue, kernel, axes, offset, size, local, count, before, event);
}

static int32_t read_buffer(Handle queue, Handle buffer, uint32_t waits, size_t offset, size_t size,
                           void *into, uint32_t count, const Handle *before, Handle *event) {
    int32_t instead = answer("read");
    if (instead) return instead;
    int32_t (*call)(Handle, Handle, uint32_t, size_t, size_t, void *, uint32_t, const Handle *, Handle *);
    *(void **)&call = next[READ_BUFFER];
    return call(queue, buffer, waits, offset, size, into, count, before, event);
}

#define EXPORT __attribute__((visibility("default")))

EXPORT int32_t clGetLayerInfo(uint32_t name, size_t size, void *value, size_t *needed) {
    static const uint32_t version = 100; /* CL_LAYER_API_VERSION_100 */
    if (name != 0x4240 /* CL_LAYER_API_VERSION */) return -30; /* CL_INVALID_VALUE */
    if (value && size >= sizeof version) memcpy(value, &version, sizeof version);
    if (needed) *needed = sizeof version;
    return 0;
}

EXPORT int32_t clInitLayer(uint32_t count, void *const *driver, uint32_t *own_count, void *const **own) {
    if (count <= CREATE_USER_EVENT || count > sizeof table / sizeof *table) return -30;
    next = driver;
    memcpy(table, driver, count * sizeof *table);
    table[CREATE_CONTEXT] = (Handle)create_context;
    table[RELEASE_CONTEXT] = (Handle)release_context;
    table[CREATE_BUFFER] = (Handle)create_buffer;
    table[BUILD_PROGRAM] = (Handle)build_program;
    table[READ_BUFFER] = (Handle)read_buffer;
    table[ENQUEUE_KERNEL] = (Handle)enqueue_kernel;
    *own_count = count;
    *own = table;
    return 0;
}
