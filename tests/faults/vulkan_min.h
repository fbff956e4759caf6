/* The few declarations of Vulkan that the fault kit needs, so that it builds without Vulkan's own
 * headers. Names are the specification's; layouts are those of 64-bit platforms.
 */
#ifndef VULKAN_MIN_H
#define VULKAN_MIN_H
#include <stddef.h>
#include <stdint.h>

typedef int32_t VkResult;
typedef uint64_t VkHandle; /* any non-dispatchable handle */
typedef struct VkInstance_T *VkInstance;
typedef struct VkPhysicalDevice_T *VkPhysicalDevice;
typedef struct VkDevice_T *VkDevice;
typedef struct VkQueue_T *VkQueue;
typedef void (*PFN_vkVoidFunction)(void);
typedef PFN_vkVoidFunction (*PFN_GetProcAddr)(void *, const char *);

enum {
    VK_SUCCESS = 0,
    VK_TIMEOUT = 2,
    VK_INCOMPLETE = 5,
    VK_ERROR_OUT_OF_HOST_MEMORY = -1,
    VK_ERROR_OUT_OF_DEVICE_MEMORY = -2,
    VK_ERROR_INITIALIZATION_FAILED = -3,
    VK_ERROR_DEVICE_LOST = -4,
    VK_ERROR_MEMORY_MAP_FAILED = -5,
    VK_ERROR_INVALID_SHADER_NV = -1000012000,
};
enum { VK_STRUCTURE_LOADER_INSTANCE = 47, VK_STRUCTURE_LOADER_DEVICE = 48 };
enum { VK_STRUCTURE_DRIVER_PROPERTIES = 1000196000 };
enum { VK_USE_TRANSFER_DST = 0x02, VK_USE_STORAGE = 0x20 };
#define VK_WHOLE_SIZE UINT64_MAX

typedef struct { /* the head that all extensible structures share */
    int32_t sType;
    const void *pNext;
} VkHead;

/* --- what the loader gives a layer ------------------------------------------------------------ */
typedef struct VkLink {
    struct VkLink *pNext;
    PFN_GetProcAddr pfnNextGetInstanceProcAddr;
    PFN_GetProcAddr pfnNext; /* of physical devices for an instance, of the device for a device */
} VkLink;
typedef struct {
    int32_t sType;
    const void *pNext;
    int32_t function; /* 0: the link */
    VkLink *pLayerInfo;
} VkLoaderInfo;
typedef struct {
    int32_t sType;
    void *pNext;
    uint32_t loaderLayerInterfaceVersion;
    PFN_GetProcAddr pfnGetInstanceProcAddr, pfnGetDeviceProcAddr, pfnGetPhysicalDeviceProcAddr;
} VkNegotiateLayerInterface;

/* --- what physical devices say about themselves ----------------------------------------------- */
typedef struct {
    uint32_t apiVersion, driverVersion, vendorID, deviceID, deviceType;
    char deviceName[256];
    uint8_t pipelineCacheUUID[16];
    uint64_t limits[63]; /* VkPhysicalDeviceLimits, 504 bytes */
    uint32_t sparse[5];
} VkPhysicalDeviceProperties;
typedef struct {
    int32_t sType;
    void *pNext;
    VkPhysicalDeviceProperties properties;
} VkPhysicalDeviceProperties2;
typedef struct {
    int32_t sType;
    void *pNext;
    uint32_t driverID;
    char driverName[256], driverInfo[256];
    uint8_t conformanceVersion[4];
} VkPhysicalDeviceDriverProperties;
typedef struct {
    uint32_t queueFlags, queueCount, timestampValidBits, granularity[3];
} VkQueueFamilyProperties;
typedef struct {
    uint32_t memoryTypeCount;
    struct {
        uint32_t propertyFlags, heapIndex;
    } memoryTypes[32];
    uint32_t memoryHeapCount;
    struct {
        uint64_t size;
        uint32_t flags;
    } memoryHeaps[16];
} VkPhysicalDeviceMemoryProperties;
typedef struct {
    char extensionName[256];
    uint32_t specVersion;
} VkExtensionProperties;

/* --- work -------------------------------------------------------------------------------------- */
typedef struct {
    int32_t sType;
    const void *pNext;
    uint32_t waitSemaphoreCount;
    const VkHandle *pWaitSemaphores;
    const uint32_t *pWaitDstStageMask;
    uint32_t commandBufferCount;
    void *const *pCommandBuffers;
    uint32_t signalSemaphoreCount;
    const VkHandle *pSignalSemaphores;
} VkSubmitInfo;
typedef struct {
    int32_t sType;
    const void *pNext;
    uint32_t flags;
    size_t codeSize;
    const uint32_t *pCode;
} VkShaderModuleCreateInfo;
typedef struct {
    int32_t sType;
    const void *pNext;
    uint64_t allocationSize;
    uint32_t memoryTypeIndex;
} VkMemoryAllocateInfo;
typedef struct {
    int32_t sType;
    const void *pNext;
    uint32_t flags;
    uint64_t size;
    uint32_t usage;
    /* sharing mode and queue families follow */
} VkBufferCreateInfo;
typedef struct {
    int32_t sType;
    const void *pNext;
    VkHandle buffer, memory;
    uint64_t memoryOffset;
} VkBindBufferMemoryInfo;
typedef struct {
    int32_t sType;
    const void *pNext;
    uint32_t flags, semaphoreCount;
    const VkHandle *pSemaphores;
    const uint64_t *pValues;
} VkSemaphoreWaitInfo;

_Static_assert(offsetof(VkPhysicalDeviceProperties, limits) == 296, "64-bit layout");
_Static_assert(sizeof(VkPhysicalDeviceProperties) == 824, "64-bit layout");
_Static_assert(sizeof(VkPhysicalDeviceMemoryProperties) == 520, "64-bit layout");
_Static_assert(sizeof(VkSubmitInfo) == 72, "64-bit layout");
#endif
