/* A Vulkan layer over any driver that fails where it is told to, from the moment a device is opened.
 *
 * Points: create (vkCreateDevice), allocate (vkAllocateMemory; vkMapMemory for `map-failed`), compile
 * (vkCreateComputePipelines; vkCreateShaderModule where the code is changed), submit (vkQueueSubmit),
 * read (vkWaitForFences, vkGetFenceStatus, vkWaitSemaphores, vkGetSemaphoreCounterValue: each time they
 * tell that work is done, before the caller learns of it; for `lost-running` only vkWaitForFences while
 * work still runs), teardown (vkDestroyDevice), finish
 * (vkDestroyInstance), load (the layer's constructor).
 */
#include "vulkan_codes.h"
#include "vulkan_data.h"
#include "vulkan_spirv.h"

#define EXPORT __attribute__((visibility("default")))

__attribute__((constructor)) static void loaded(void) { fault_point("load"); }

/* --- tables of what comes next ------------------------------------------------------------------ */

enum { PLACES = 64, FUNCTIONS = 64 };

typedef struct {
    void *key; /* what the loader writes into every handle of one instance or device */
    void *handle;
    PFN_GetProcAddr next;
    struct {
        const char *name;
        PFN_vkVoidFunction function;
    } found[FUNCTIONS];
} Place;

static Place places[PLACES];
static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;

static void *key_of(void *handle) { return *(void **)handle; }

static void remember(void *handle, PFN_GetProcAddr next) {
    pthread_mutex_lock(&places_lock);
    for (int i = 0; i < PLACES; i++)
        if (places[i].key == NULL) {
            memset(&places[i], 0, sizeof places[i]);
            places[i].handle = handle;
            places[i].next = next;
            places[i].key = key_of(handle);
            break;
        }
    pthread_mutex_unlock(&places_lock);
}

static Place *place_of(void *handle) {
    void *key = key_of(handle);
    for (int i = 0; i < PLACES; i++)
        if (places[i].key == key) return &places[i];
    fprintf(stderr, "the fault layer got a handle it does not know\n");
    abort();
}

/* The next function of this name, which is a literal: it is kept. */
static PFN_vkVoidFunction next_of(Place *place, const char *name) {
    pthread_mutex_lock(&places_lock);
    int i = 0;
    while (i < FUNCTIONS - 1 && place->found[i].name != NULL &&
           strcmp(place->found[i].name, name) != 0)
        i++;
    if (place->found[i].name == NULL || i == FUNCTIONS - 1) {
        place->found[i].function = place->next(place->handle, name);
        place->found[i].name = name;
    }
    PFN_vkVoidFunction found = place->found[i].function;
    pthread_mutex_unlock(&places_lock);
    return found;
}

#define NEXT(handle, type, name) ((type)next_of(place_of(handle), name))
#define MAP(device) NEXT(device, MapMemory, "vkMapMemory")
#define UNMAP(device) NEXT(device, UnmapMemory, "vkUnmapMemory")

static VkLink *link_of(const void *info, int32_t type) {
    VkLoaderInfo *found = (VkLoaderInfo *)((const VkHead *)info)->pNext;
    while (found != NULL && !(found->sType == type && found->function == 0))
        found = (VkLoaderInfo *)found->pNext;
    if (found == NULL) return NULL;
    VkLink *mine = found->pLayerInfo;
    found->pLayerInfo = mine->pNext; /* the next layer finds its own link there */
    return mine;
}

/* --- instances and devices ----------------------------------------------------------------------- */

typedef VkResult (*CreateInstance)(const void *, const void *, VkInstance *);
static VkResult create_instance(const void *info, const void *allocator, VkInstance *made) {
    VkLink *mine = link_of(info, VK_STRUCTURE_LOADER_INSTANCE);
    if (mine == NULL) return VK_ERROR_INITIALIZATION_FAILED;
    PFN_GetProcAddr next = mine->pfnNextGetInstanceProcAddr;
    VkResult result = ((CreateInstance)next(NULL, "vkCreateInstance"))(info, allocator, made);
    if (result == VK_SUCCESS) {
        remember(*made, next);
        next_of(place_of(*made), "vkDestroyInstance"); /* asked later, the loader names the first layer's */
    }
    return result;
}

typedef void (*Destroy)(void *, const void *);
static void destroy_instance(VkInstance instance, const void *allocator) {
    if (instance == NULL) return;
    fault_point("finish");
    Place *place = place_of(instance);
    Destroy next = (Destroy)next_of(place, "vkDestroyInstance");
    place->key = NULL; /* before: another thread may get the same address at once */
    next(instance, allocator);
}

typedef VkResult (*CreateDevice)(VkPhysicalDevice, const void *, const void *, VkDevice *);
static VkResult create_device(VkPhysicalDevice physical, const void *info, const void *allocator,
                              VkDevice *made) {
    VkResult code;
    if (code_due("create", &code)) return code;
    VkLink *mine = link_of(info, VK_STRUCTURE_LOADER_DEVICE);
    if (mine == NULL) return VK_ERROR_INITIALIZATION_FAILED;
    Place *instance = place_of(physical);
    PFN_GetProcAddr next_instance = mine->pfnNextGetInstanceProcAddr, next = mine->pfnNext;
    CreateDevice create = (CreateDevice)next_instance(instance->handle, "vkCreateDevice");
    VkResult result = create(physical, info, allocator, made);
    if (result == VK_SUCCESS) remember(*made, next);
    return result;
}

static void forget_semaphores(VkDevice device);

static void destroy_device(VkDevice device, const void *allocator) {
    if (device == NULL) return;
    fault_point("teardown");
    forget_semaphores(device);
    Place *place = place_of(device);
    Destroy next = (Destroy)next_of(place, "vkDestroyDevice");
    place->key = NULL;
    next(device, allocator);
}

/* --- memory and buffers -------------------------------------------------------------------------- */

typedef VkResult (*Make)(VkDevice, const void *, const void *, VkHandle *);
static VkResult allocate_memory(VkDevice device, const void *info, const void *allocator,
                                VkHandle *made) {
    VkResult code;
    if (!fault_is("map-failed") && code_due("allocate", &code)) return code;
    return NEXT(device, Make, "vkAllocateMemory")(device, info, allocator, made);
}

typedef void (*Unmake)(VkDevice, VkHandle, const void *);
static void free_memory(VkDevice device, VkHandle memory, const void *allocator) {
    data_unmap(device, memory);
    NEXT(device, Unmake, "vkFreeMemory")(device, memory, allocator);
}

static VkResult map_memory(VkDevice device, VkHandle memory, uint64_t offset, uint64_t size,
                           uint32_t flags, void **host) {
    VkResult code;
    if (fault_is("map-failed") && code_due("allocate", &code)) return code;
    VkResult result = MAP(device)(device, memory, offset, size, flags, host);
    if (result == VK_SUCCESS) data_map(device, memory, (char *)*host - offset);
    return result;
}

static void unmap_memory(VkDevice device, VkHandle memory) {
    data_unmap(device, memory);
    UNMAP(device)(device, memory);
}

static VkResult create_buffer(VkDevice device, const void *info, const void *allocator,
                              VkHandle *made) {
    VkResult result = NEXT(device, Make, "vkCreateBuffer")(device, info, allocator, made);
    if (result == VK_SUCCESS) data_create(device, *made, info);
    return result;
}

static void destroy_buffer(VkDevice device, VkHandle buffer, const void *allocator) {
    data_destroy(device, buffer);
    NEXT(device, Unmake, "vkDestroyBuffer")(device, buffer, allocator);
}

typedef VkResult (*Bind)(VkDevice, VkHandle, VkHandle, uint64_t);
static VkResult bind_buffer(VkDevice device, VkHandle buffer, VkHandle memory, uint64_t offset) {
    VkResult result = NEXT(device, Bind, "vkBindBufferMemory")(device, buffer, memory, offset);
    if (result == VK_SUCCESS)
        data_bind(device, buffer, memory, offset, MAP(device), UNMAP(device));
    return result;
}

typedef VkResult (*Bind2)(VkDevice, uint32_t, const VkBindBufferMemoryInfo *);
static VkResult bind_buffers(VkDevice device, uint32_t count, const VkBindBufferMemoryInfo *infos) {
    Bind2 next = NEXT(device, Bind2, "vkBindBufferMemory2");
    if (next == NULL) next = NEXT(device, Bind2, "vkBindBufferMemory2KHR");
    VkResult result = next(device, count, infos);
    for (uint32_t i = 0; result == VK_SUCCESS && i < count; i++)
        data_bind(device, infos[i].buffer, infos[i].memory, infos[i].memoryOffset, MAP(device),
                  UNMAP(device));
    return result;
}

/* --- kernels ------------------------------------------------------------------------------------- */

static VkResult create_shader(VkDevice device, const VkShaderModuleCreateInfo *info,
                              const void *allocator, VkHandle *made) {
    Make next = NEXT(device, Make, "vkCreateShaderModule");
    uint64_t call = is_spirv_fault() ? fault_due("compile") : 0;
    uint32_t *changed = call != 0 ? spirv_changed(info->pCode, info->codeSize) : NULL;
    if (changed == NULL) return next(device, info, allocator, made);
    VkShaderModuleCreateInfo other = *info;
    other.pCode = changed;
    fault_log("compile", call);
    VkResult result = next(device, &other, allocator, made);
    free(changed);
    return result;
}

typedef VkResult (*Pipelines)(VkDevice, VkHandle, uint32_t, const void *, const void *, VkHandle *);
static VkResult create_pipelines(VkDevice device, VkHandle cache, uint32_t count, const void *infos,
                                 const void *allocator, VkHandle *made) {
    VkResult code;
    if (!is_spirv_fault() && code_due("compile", &code)) {
        for (uint32_t i = 0; i < count; i++) made[i] = 0;
        return code;
    }
    Pipelines next = NEXT(device, Pipelines, "vkCreateComputePipelines");
    return next(device, cache, count, infos, allocator, made);
}

/* --- work ---------------------------------------------------------------------------------------- */

typedef VkResult (*Submit)(VkQueue, uint32_t, const VkSubmitInfo *, VkHandle);
static VkResult submit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkHandle fence) {
    VkResult code;
    VkSubmitInfo empty[16];
    Submit next = NEXT(queue, Submit, "vkQueueSubmit");
    if (count == 0) return next(queue, count, infos, fence);
    uint64_t due = fault_point("submit");
    if (code_told("submit", due, &code)) return code;
    VkDevice device = (VkDevice)place_of(queue)->handle;
    data_before(device, MAP(device), UNMAP(device));
    if (due == 0 || !fault_is("untouched-output") || count > 16)
        return next(queue, count, infos, fence);
    fault_log("submit", due);
    for (uint32_t i = 0; i < count; i++) { /* everything is signalled, and nothing done */
        empty[i] = infos[i];
        empty[i].commandBufferCount = 0;
    }
    return next(queue, count, empty, fence);
}

/* What a call that waits is to return, now that work is known to be done. */
static VkResult done(VkDevice device) {
    VkResult code;
    uint64_t due = fault_point("read");
    if (code_told("read", due, &code)) return code;
    if (due != 0 && is_data_fault()) fault_log("read", due);
    data_after(device, MAP(device), UNMAP(device), due != 0);
    return VK_SUCCESS;
}

typedef VkResult (*WaitFences)(VkDevice, uint32_t, const VkHandle *, uint32_t, uint64_t);
static VkResult wait_fences(VkDevice device, uint32_t count, const VkHandle *fences, uint32_t all,
                            uint64_t timeout) {
    WaitFences next = NEXT(device, WaitFences, "vkWaitForFences");
    VkResult code;
    if (fault_is("lost-running"))
        return next(device, count, fences, all, 0) == VK_TIMEOUT && code_due("read", &code)
                   ? code : next(device, count, fences, all, timeout);
    VkResult result = next(device, count, fences, all, timeout);
    return result == VK_SUCCESS ? done(device) : result;
}

typedef VkResult (*FenceStatus)(VkDevice, VkHandle);
static VkResult fence_status(VkDevice device, VkHandle fence) {
    VkResult result = NEXT(device, FenceStatus, "vkGetFenceStatus")(device, fence);
    return result == VK_SUCCESS ? done(device) : result;
}

static struct {
    VkDevice device;
    VkHandle semaphore;
    uint64_t value;
} semaphores[256];
static pthread_mutex_t semaphores_lock = PTHREAD_MUTEX_INITIALIZER;

/* Whether a timeline semaphore has come further than it was known to be. */
static int is_news(VkDevice device, VkHandle semaphore, uint64_t value) {
    int news = value > 0;
    pthread_mutex_lock(&semaphores_lock);
    for (int i = 0; i < 256; i++) {
        if (semaphores[i].device == device && semaphores[i].semaphore == semaphore) {
            news = value > semaphores[i].value;
            if (news) semaphores[i].value = value;
            break;
        }
        if (semaphores[i].device == NULL) {
            semaphores[i].device = device;
            semaphores[i].semaphore = semaphore;
            semaphores[i].value = value;
            break;
        }
    }
    pthread_mutex_unlock(&semaphores_lock);
    return news;
}

static void forget_semaphores(VkDevice device) {
    pthread_mutex_lock(&semaphores_lock);
    for (int i = 0; i < 256; i++)
        if (semaphores[i].device == device) semaphores[i].value = 0;
    pthread_mutex_unlock(&semaphores_lock);
}

typedef VkResult (*WaitSemaphores)(VkDevice, const VkSemaphoreWaitInfo *, uint64_t);
static VkResult wait_semaphores(VkDevice device, const VkSemaphoreWaitInfo *info, uint64_t timeout) {
    WaitSemaphores next = NEXT(device, WaitSemaphores, "vkWaitSemaphores");
    if (next == NULL) next = NEXT(device, WaitSemaphores, "vkWaitSemaphoresKHR");
    VkResult result = next(device, info, timeout);
    int news = 0;
    for (uint32_t i = 0; result == VK_SUCCESS && i < info->semaphoreCount; i++)
        news |= is_news(device, info->pSemaphores[i], info->pValues[i]);
    return news ? done(device) : result;
}

typedef VkResult (*Counter)(VkDevice, VkHandle, uint64_t *);
static VkResult counter_value(VkDevice device, VkHandle semaphore, uint64_t *value) {
    Counter next = NEXT(device, Counter, "vkGetSemaphoreCounterValue");
    if (next == NULL) next = NEXT(device, Counter, "vkGetSemaphoreCounterValueKHR");
    VkResult result = next(device, semaphore, value);
    return result == VK_SUCCESS && is_news(device, semaphore, *value) ? done(device) : result;
}

/* --- what the loader asks for --------------------------------------------------------------------- */

static PFN_vkVoidFunction instance_function(void *instance, const char *name);
static PFN_vkVoidFunction device_function(void *device, const char *name);

typedef struct {
    const char *name;
    PFN_vkVoidFunction function;
} Named;

#define FUNCTION(name, own) {name, (PFN_vkVoidFunction)own}

static const Named instance_functions[] = {
    FUNCTION("vkGetInstanceProcAddr", instance_function),
    FUNCTION("vkCreateInstance", create_instance),
    FUNCTION("vkDestroyInstance", destroy_instance),
    FUNCTION("vkCreateDevice", create_device),
};

static const Named device_functions[] = {
    FUNCTION("vkGetDeviceProcAddr", device_function),
    FUNCTION("vkDestroyDevice", destroy_device),
    FUNCTION("vkAllocateMemory", allocate_memory),
    FUNCTION("vkFreeMemory", free_memory),
    FUNCTION("vkMapMemory", map_memory),
    FUNCTION("vkUnmapMemory", unmap_memory),
    FUNCTION("vkCreateBuffer", create_buffer),
    FUNCTION("vkDestroyBuffer", destroy_buffer),
    FUNCTION("vkBindBufferMemory", bind_buffer),
    FUNCTION("vkBindBufferMemory2", bind_buffers),
    FUNCTION("vkBindBufferMemory2KHR", bind_buffers),
    FUNCTION("vkCreateShaderModule", create_shader),
    FUNCTION("vkCreateComputePipelines", create_pipelines),
    FUNCTION("vkQueueSubmit", submit),
    FUNCTION("vkWaitForFences", wait_fences),
    FUNCTION("vkGetFenceStatus", fence_status),
    FUNCTION("vkWaitSemaphores", wait_semaphores),
    FUNCTION("vkWaitSemaphoresKHR", wait_semaphores),
    FUNCTION("vkGetSemaphoreCounterValue", counter_value),
    FUNCTION("vkGetSemaphoreCounterValueKHR", counter_value),
};

static PFN_vkVoidFunction named(const Named *table, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(table[i].name, name) == 0) return table[i].function;
    return NULL;
}

#define COUNT(table) (sizeof(table) / sizeof *(table))

static PFN_vkVoidFunction device_function(void *device, const char *name) {
    Place *place = place_of(device);
    PFN_vkVoidFunction theirs = place->next(place->handle, name);
    PFN_vkVoidFunction mine = named(device_functions, COUNT(device_functions), name);
    return theirs != NULL && mine != NULL ? mine : theirs; /* never offer what the driver lacks */
}

static PFN_vkVoidFunction instance_function(void *instance, const char *name) {
    PFN_vkVoidFunction mine = named(instance_functions, COUNT(instance_functions), name);
    if (mine != NULL || instance == NULL) return mine;
    Place *place = place_of(instance);
    PFN_vkVoidFunction theirs = place->next(place->handle, name);
    mine = named(device_functions, COUNT(device_functions), name);
    return theirs != NULL && mine != NULL ? mine : theirs;
}

EXPORT VkResult vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *asked) {
    if (asked->loaderLayerInterfaceVersion > 2) asked->loaderLayerInterfaceVersion = 2;
    asked->pfnGetInstanceProcAddr = instance_function;
    asked->pfnGetDeviceProcAddr = device_function;
    asked->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
