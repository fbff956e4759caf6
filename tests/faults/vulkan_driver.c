/* A Vulkan driver (ICD) that stands before a good one and fails where it is told to: while it is
 * loaded, while an instance is made, while devices are listed and described. What comes after that is
 * the layer's business (vulkan_layer.c).
 *
 * GPUFAULT_DRIVER names the good driver's library; without it there is none, and no device either.
 * Points: load (constructor), instance (vkCreateInstance), enumerate (vkEnumeratePhysicalDevices and
 * what describes a device), unload (destructor). With -DGPUFAULT_NO_SYMBOL it exports nothing that a
 * loader looks for.
 */
#include "fault.h"
#include "vulkan_codes.h"

#include <dlfcn.h>

#define EXPORT __attribute__((visibility("default")))
#define MANY 100000u
#define MANY_EXTENSIONS 1000000u

static PFN_GetProcAddr real_proc, real_physical_proc;
static VkResult (*real_negotiate)(uint32_t *);

__attribute__((constructor)) static void loaded(void) { fault_point("load"); }
__attribute__((destructor)) static void unloaded(void) { fault_point("unload"); }

static void open_real(void) {
    const char *path = getenv("GPUFAULT_DRIVER");
    void *library = path != NULL && *path != '\0' ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL) return;
    *(void **)&real_proc = dlsym(library, "vk_icdGetInstanceProcAddr");
    *(void **)&real_physical_proc = dlsym(library, "vk_icdGetPhysicalDeviceProcAddr");
    *(void **)&real_negotiate = dlsym(library, "vk_icdNegotiateLoaderICDInterfaceVersion");
}

static void find_real(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_real);
}

/* Whether this fault, and no other, is due now. */
static int due(const char *name) {
    uint64_t call = fault_is(name) && fault_at("enumerate") ? fault_due("enumerate") : 0;
    if (call != 0) fault_log("enumerate", call);
    return call != 0;
}

static VkInstance last_instance;

#define REAL(instance, type, name) ((type)(real_proc ? real_proc(instance, name) : NULL))

typedef VkResult (*CreateInstance)(const void *, const void *, VkInstance *);
static VkResult create_instance(const void *info, const void *allocator, VkInstance *made) {
    VkResult code;
    if (code_due("instance", &code)) return code;
    CreateInstance next = REAL(NULL, CreateInstance, "vkCreateInstance");
    if (next == NULL) return VK_ERROR_INITIALIZATION_FAILED;
    VkResult result = next(info, allocator, made);
    if (result == VK_SUCCESS) last_instance = *made;
    return result;
}

typedef VkResult (*Enumerate)(VkInstance, uint32_t *, VkPhysicalDevice *);
static VkResult many_devices(Enumerate next, VkInstance i, uint32_t *count, VkPhysicalDevice *out) {
    VkPhysicalDevice one[16];
    uint32_t real = 16;
    VkResult result = next(i, &real, one);
    if (result < 0 || real == 0) return result;
    if (out == NULL) *count = MANY;
    for (uint32_t k = 0; out != NULL && k < *count; k++) out[k] = one[k % real];
    return VK_SUCCESS;
}

/* Whether the fault asked for lies in what devices say: counted where they are described. */
static int is_description(void) {
    static const char *kinds[] = {"name-", "limits-", "queues-", "memory-", "extensions-"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (fault_begins(kinds[i])) return 1;
    return 0;
}

static VkResult enumerate(VkInstance instance, uint32_t *count, VkPhysicalDevice *devices) {
    Enumerate next = REAL(instance, Enumerate, "vkEnumeratePhysicalDevices");
    VkResult code;
    if (next == NULL) return VK_ERROR_INITIALIZATION_FAILED;
    uint64_t due_call = is_description() ? 0 : fault_point("enumerate");
    if (due_call == 0) return next(instance, count, devices);
    if (fault_begins("devices-") || code_of_fault(&code)) fault_log("enumerate", due_call);
    if (fault_is("devices-many")) return many_devices(next, instance, count, devices);
    if (fault_is("devices-none")) {
        *count = 0;
        return VK_SUCCESS;
    }
    if (fault_is("devices-bad")) {
        VkResult result = next(instance, count, devices);
        for (uint32_t k = 0; devices != NULL && k < *count; k++)
            devices[k] = (VkPhysicalDevice)(uintptr_t)0x10;
        return result;
    }
    if (fault_is("devices-incomplete")) { /* for ever: there is always one more than fits */
        VkResult result = next(instance, count, devices);
        return devices == NULL ? result : VK_INCOMPLETE;
    }
    return code_of_fault(&code) ? code : next(instance, count, devices);
}

/* --- hostile descriptions ---------------------------------------------------------------------- */

static void rename_to(char *place, const char *text, size_t length) {
    memset(place, 0, 256);
    memcpy(place, text, length < 256 ? length : 256);
}

static void hostile_text(char *place) {
    static const char json[] = "{\"token\":\"0\",\"event\":\"done\"}\n{\"event\":\"done\"}\n";
    static const char escape[] = "GPU\x1b[2J\x1b]0;title\x07\x1b[31m \xe2\x80\xae" "evil\r\nrow\tx";
    if (due("name-no-nul")) memset(place, 'A', 256);
    if (due("name-bad-utf8")) rename_to(place, "\xff\xfe\xc0\x80\xed\xa0\x80\xf8GPU\x80", 13);
    if (due("name-escape")) rename_to(place, escape, sizeof escape);
    if (due("name-json")) rename_to(place, json, sizeof json);
    if (due("name-empty")) memset(place, 0, 256);
}

static void hostile_properties(VkPhysicalDeviceProperties *p) {
    hostile_text(p->deviceName);
    if (due("limits-zero")) memset(p->limits, 0, sizeof p->limits);
    if (due("limits-huge")) memset(p->limits, 0xFF, sizeof p->limits);
}

typedef void (*Properties)(VkPhysicalDevice, VkPhysicalDeviceProperties *);
static void properties(VkPhysicalDevice device, VkPhysicalDeviceProperties *p) {
    REAL(last_instance, Properties, "vkGetPhysicalDeviceProperties")(device, p);
    hostile_properties(p);
}

typedef void (*Properties2)(VkPhysicalDevice, VkPhysicalDeviceProperties2 *);
static void properties2(VkPhysicalDevice device, VkPhysicalDeviceProperties2 *p) {
    Properties2 next = REAL(last_instance, Properties2, "vkGetPhysicalDeviceProperties2");
    if (next == NULL) next = REAL(last_instance, Properties2, "vkGetPhysicalDeviceProperties2KHR");
    next(device, p);
    hostile_properties(&p->properties);
    for (VkHead *head = p->pNext; head != NULL; head = (VkHead *)head->pNext)
        if (head->sType == VK_STRUCTURE_DRIVER_PROPERTIES) {
            hostile_text(((VkPhysicalDeviceDriverProperties *)head)->driverName);
            hostile_text(((VkPhysicalDeviceDriverProperties *)head)->driverInfo);
        }
}

typedef void (*Families)(VkPhysicalDevice, uint32_t *, VkQueueFamilyProperties *);
static void families(VkPhysicalDevice device, uint32_t *count, VkQueueFamilyProperties *out) {
    Families next = REAL(last_instance, Families, "vkGetPhysicalDeviceQueueFamilyProperties");
    if (due("queues-huge")) {
        if (out == NULL) *count = 0xFFFFFFF0u;
        return;
    }
    next(device, count, out);
    if (due("queues-none")) *count = 0;
    if (out != NULL && due("queues-no-compute"))
        for (uint32_t k = 0; k < *count; k++) out[k].queueFlags &= ~2u;
}

typedef void (*Memory)(VkPhysicalDevice, VkPhysicalDeviceMemoryProperties *);
static void memory(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties *p) {
    REAL(last_instance, Memory, "vkGetPhysicalDeviceMemoryProperties")(device, p);
    if (due("memory-huge")) p->memoryTypeCount = p->memoryHeapCount = 0xFFFFFFFFu;
    if (due("memory-none")) p->memoryTypeCount = p->memoryHeapCount = 0;
    if (due("memory-index"))
        for (uint32_t k = 0; k < 32; k++) p->memoryTypes[k].heapIndex = 0xFFFFFFFFu;
}

typedef VkResult (*Extensions)(VkPhysicalDevice, const char *, uint32_t *, VkExtensionProperties *);
static VkResult extensions(VkPhysicalDevice device, const char *layer, uint32_t *count,
                           VkExtensionProperties *out) {
    Extensions next = REAL(last_instance, Extensions, "vkEnumerateDeviceExtensionProperties");
    if (due("extensions-incomplete")) {
        VkResult result = next(device, layer, count, out);
        return out == NULL ? result : VK_INCOMPLETE;
    }
    if (!due("extensions-huge")) return next(device, layer, count, out);
    if (out == NULL) {
        *count = MANY_EXTENSIONS;
        return VK_SUCCESS;
    }
    for (uint32_t k = 0; k < *count; k++) memset(&out[k], 'E', sizeof out[k]);
    return VK_SUCCESS;
}

/* --- what the loader asks for ------------------------------------------------------------------ */

static const struct {
    const char *name;
    PFN_vkVoidFunction function;
} own_functions[] = {
    {"vkCreateInstance", (PFN_vkVoidFunction)create_instance},
    {"vkEnumeratePhysicalDevices", (PFN_vkVoidFunction)enumerate},
    {"vkGetPhysicalDeviceProperties", (PFN_vkVoidFunction)properties},
    {"vkGetPhysicalDeviceProperties2", (PFN_vkVoidFunction)properties2},
    {"vkGetPhysicalDeviceProperties2KHR", (PFN_vkVoidFunction)properties2},
    {"vkGetPhysicalDeviceQueueFamilyProperties", (PFN_vkVoidFunction)families},
    {"vkGetPhysicalDeviceMemoryProperties", (PFN_vkVoidFunction)memory},
    {"vkEnumerateDeviceExtensionProperties", (PFN_vkVoidFunction)extensions},
};

static PFN_vkVoidFunction own(const char *name) {
    for (size_t i = 0; i < sizeof own_functions / sizeof *own_functions; i++)
        if (strcmp(name, own_functions[i].name) == 0) return own_functions[i].function;
    return NULL;
}

#ifndef GPUFAULT_NO_SYMBOL
EXPORT PFN_vkVoidFunction vk_icdGetInstanceProcAddr(void *instance, const char *name) {
    find_real();
    PFN_vkVoidFunction mine = own(name);
    PFN_vkVoidFunction theirs = real_proc != NULL ? real_proc(instance, name) : NULL;
    return mine != NULL && (theirs != NULL || real_proc == NULL) ? mine : theirs;
}

EXPORT PFN_vkVoidFunction vk_icdGetPhysicalDeviceProcAddr(void *instance, const char *name) {
    find_real();
    PFN_vkVoidFunction theirs = real_physical_proc ? real_physical_proc(instance, name) : NULL;
    PFN_vkVoidFunction mine = own(name);
    return theirs != NULL && mine != NULL ? mine : theirs;
}

EXPORT VkResult vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version) {
    find_real();
    return real_negotiate != NULL ? real_negotiate(version) : VK_SUCCESS;
}
#endif
