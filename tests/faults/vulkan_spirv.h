/* Faults of a driver's compiler: SPIR-V that says something else than what was asked for. */
#ifndef VULKAN_SPIRV_H
#define VULKAN_SPIRV_H
#include "fault.h"

enum { SPIRV_HEADER = 5, OP_NOP = 0, OP_VARIABLE = 59, OP_STORE = 62 };
enum { OP_ACCESS_CHAIN = 65, OP_IN_BOUNDS_ACCESS_CHAIN = 66, OP_COPY_OBJECT = 83 };
enum { OP_FADD = 129, OP_FSUB = 131, OP_FMUL = 133 };
enum { STORAGE_UNIFORM = 2, STORAGE_BUFFER = 12 };

static int is_spirv_fault(void) {
    if (!fault_at("compile")) return 0;
    return fault_is("wrong") || fault_is("wrong-mul") || fault_is("untouched-output");
}

/* Exchange one operation for another that takes the same operands. */
static void spirv_exchange(uint32_t *code, size_t words, uint32_t from, uint32_t to) {
    for (size_t i = SPIRV_HEADER; i < words;) {
        uint32_t op = code[i] & 0xFFFFu, length = code[i] >> 16;
        if (length == 0) return;
        if (op == from) code[i] = (length << 16) | to;
        i += length;
    }
}

/* Take out every store to a storage buffer. `is_buffer` has a byte per id, all zero. */
static void spirv_drop_stores(uint32_t *code, size_t words, uint8_t *is_buffer, uint32_t bound) {
    for (size_t i = SPIRV_HEADER; i < words;) {
        uint32_t op = code[i] & 0xFFFFu, length = code[i] >> 16;
        if (length == 0 || i + length > words) return;
        if (op == OP_VARIABLE && code[i + 2] < bound)
            is_buffer[code[i + 2]] =
                code[i + 3] == STORAGE_BUFFER || code[i + 3] == STORAGE_UNIFORM;
        int derives = op == OP_ACCESS_CHAIN || op == OP_IN_BOUNDS_ACCESS_CHAIN ||
                      op == OP_COPY_OBJECT;
        if (derives && code[i + 2] < bound && code[i + 3] < bound)
            is_buffer[code[i + 2]] = is_buffer[code[i + 3]];
        if (op == OP_STORE && code[i + 1] < bound && is_buffer[code[i + 1]])
            for (uint32_t k = 0; k < length; k++) code[i + k] = (1u << 16) | OP_NOP;
        i += length;
    }
}

/* Return a changed copy to be freed, or NULL where there is no memory. */
static uint32_t *spirv_changed(const uint32_t *code, size_t bytes) {
    size_t words = bytes / 4;
    uint32_t *copy = malloc(bytes);
    uint32_t bound = words > 3 ? code[3] : 0;
    uint8_t *flags = calloc(bound + 1, 1);
    if (copy != NULL && flags != NULL) {
        memcpy(copy, code, bytes);
        if (fault_is("wrong")) spirv_exchange(copy, words, OP_FADD, OP_FSUB);
        if (fault_is("wrong-mul")) spirv_exchange(copy, words, OP_FMUL, OP_FADD);
        if (fault_is("untouched-output")) spirv_drop_stores(copy, words, flags, bound);
    }
    free(flags);
    return copy;
}
#endif
