/* Faults that are a number returned: which number the fault asked for stands for. */
#ifndef VULKAN_CODES_H
#define VULKAN_CODES_H
#include "fault.h"
#include "vulkan_min.h"

static const struct {
    const char *name;
    VkResult code;
} fault_codes[] = {
    {"lost", VK_ERROR_DEVICE_LOST},
    {"lost-running", VK_ERROR_DEVICE_LOST},
    {"oom-host", VK_ERROR_OUT_OF_HOST_MEMORY},
    {"oom-device", VK_ERROR_OUT_OF_DEVICE_MEMORY},
    {"init-failed", VK_ERROR_INITIALIZATION_FAILED},
    {"map-failed", VK_ERROR_MEMORY_MAP_FAILED},
    {"compile-failed", VK_ERROR_INVALID_SHADER_NV},
    {"incomplete", VK_INCOMPLETE},
};

/* Whether the fault asked for is a number; `code17` and `code-999` are any number at all. */
static int code_of_fault(VkResult *code) {
    for (size_t i = 0; i < sizeof fault_codes / sizeof *fault_codes; i++)
        if (fault_is(fault_codes[i].name)) {
            *code = fault_codes[i].code;
            return 1;
        }
    if (!fault_begins("code")) return 0;
    *code = atoi(fault_asked.name + 4);
    return 1;
}

/* Whether the fault that is due at this call (0: none is) is a number to be returned. */
static int code_told(const char *point, uint64_t call, VkResult *code) {
    if (call == 0 || !code_of_fault(code)) return 0;
    fault_log(point, call);
    return 1;
}

/* Count a call at this point and carry the fault out; whether it is a number to be returned. */
static int code_due(const char *point, VkResult *code) {
    return code_told(point, fault_point(point), code);
}
#endif
