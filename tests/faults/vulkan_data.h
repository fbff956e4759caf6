/* Faults in the data: what the host sees of a device's work is changed after it was done.
 *
 * An output is a buffer that the host can see and whose bytes a submission has changed. Buffers that
 * are only copied to (the read-back buffers of APIs above Vulkan) go before those that kernels write.
 * Nothing is kept, and nothing costs anything, where no such fault is asked for.
 */
#ifndef VULKAN_DATA_H
#define VULKAN_DATA_H
#include "fault.h"
#include "vulkan_min.h"

enum { DATA_BUFFERS = 8192, DATA_MEMORIES = 1024 };

typedef VkResult (*MapMemory)(VkDevice, VkHandle, uint64_t, uint64_t, uint32_t, void **);
typedef void (*UnmapMemory)(VkDevice, VkHandle);

typedef struct {
    VkDevice device;
    VkHandle memory;
    char *host; /* where the application mapped its first byte; NULL where it did not */
} DataMemory;

typedef struct {
    VkDevice device;
    VkHandle buffer, memory;
    uint64_t size, offset, hash;
    uint32_t usage;
    int is_bound, is_hashed, is_output;
    void *saved; /* for `stale`: what it held after an earlier run */
} DataBuffer;

static DataMemory data_memories[DATA_MEMORIES];
static DataBuffer data_buffers[DATA_BUFFERS];
static size_t data_memory_count, data_buffer_count; /* places ever used */
static pthread_mutex_t data_lock = PTHREAD_MUTEX_INITIALIZER;

static int is_data_fault(void) {
    static const char *names[] = {"zero-output", "torn-output", "wrong",         "nan",
                                  "unstable",    "stale",       "unstable-zero"};
    if (!fault_at("read")) return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (fault_is(names[i])) return 1;
    return 0;
}

/* --- bookkeeping; handles are unique per device ------------------------------------------------ */

static DataMemory *data_memory(VkDevice device, VkHandle memory) {
    for (size_t i = 0; i < data_memory_count; i++)
        if (data_memories[i].device == device && data_memories[i].memory == memory)
            return &data_memories[i];
    return NULL;
}

static void data_map(VkDevice device, VkHandle memory, void *host) {
    if (!is_data_fault()) return;
    pthread_mutex_lock(&data_lock);
    DataMemory *place = data_memory(device, memory);
    if (place == NULL) place = data_memory(NULL, 0);
    if (place == NULL && data_memory_count < DATA_MEMORIES)
        place = &data_memories[data_memory_count++];
    if (place != NULL) *place = (DataMemory){device, memory, host};
    pthread_mutex_unlock(&data_lock);
}

static void data_unmap(VkDevice device, VkHandle memory) {
    if (!is_data_fault()) return;
    pthread_mutex_lock(&data_lock);
    DataMemory *place = data_memory(device, memory);
    if (place != NULL) *place = (DataMemory){NULL, 0, NULL};
    pthread_mutex_unlock(&data_lock);
}

static DataBuffer *data_buffer(VkDevice device, VkHandle buffer) {
    for (size_t i = 0; i < data_buffer_count; i++)
        if (data_buffers[i].device == device && data_buffers[i].buffer == buffer)
            return &data_buffers[i];
    return NULL;
}

static void data_create(VkDevice device, VkHandle buffer, const VkBufferCreateInfo *info) {
    if (!is_data_fault()) return;
    pthread_mutex_lock(&data_lock);
    DataBuffer *place = data_buffer(NULL, 0);
    if (place == NULL && data_buffer_count < DATA_BUFFERS)
        place = &data_buffers[data_buffer_count++];
    if (place != NULL)
        *place = (DataBuffer){
            .device = device, .buffer = buffer, .size = info->size, .usage = info->usage};
    pthread_mutex_unlock(&data_lock);
}

static void data_destroy(VkDevice device, VkHandle buffer) {
    if (!is_data_fault()) return;
    pthread_mutex_lock(&data_lock);
    DataBuffer *place = data_buffer(device, buffer);
    if (place != NULL) {
        free(place->saved);
        memset(place, 0, sizeof *place);
    }
    pthread_mutex_unlock(&data_lock);
}

/* --- what the device wrote --------------------------------------------------------------------- */

typedef void (*DataVisit)(DataBuffer *, char *bytes);

/* Visit a buffer's bytes; memory that the application has not mapped is mapped meanwhile. */
static void data_visit(DataBuffer *b, MapMemory map, UnmapMemory unmap, DataVisit visit) {
    DataMemory *memory = data_memory(b->device, b->memory);
    void *bytes = NULL;
    if (memory != NULL) {
        visit(b, memory->host + b->offset);
    } else if (map(b->device, b->memory, b->offset, b->size, 0, &bytes) == VK_SUCCESS) {
        visit(b, bytes);
        unmap(b->device, b->memory);
    }
}

/* A new buffer holds anything, so let it be what no work leaves behind: else a result that equals
 * what an older buffer left in the same place would not be seen as one. */
static void data_fresh(DataBuffer *b, char *bytes) { memset(bytes, 0x5A, b->size); }

static void data_bind(VkDevice device, VkHandle buffer, VkHandle memory, uint64_t offset,
                      MapMemory map, UnmapMemory unmap) {
    if (!is_data_fault()) return;
    pthread_mutex_lock(&data_lock);
    DataBuffer *place = data_buffer(device, buffer);
    if (place != NULL) {
        place->memory = memory;
        place->offset = offset;
        place->is_bound = 1;
        data_visit(place, map, unmap, data_fresh);
    }
    pthread_mutex_unlock(&data_lock);
}

static uint64_t data_hash(const char *bytes, uint64_t size) {
    uint64_t hash = 0xCBF29CE484222325u, word = 0;
    for (uint64_t i = 0; i + 8 <= size; i += 8) {
        memcpy(&word, bytes + i, 8);
        hash = (hash ^ word) * 0x100000001B3u;
    }
    word = 0;
    memcpy(&word, bytes + (size & ~7ull), size & 7);
    return (hash ^ word) * 0x100000001B3u;
}

static void data_note(DataBuffer *b, char *bytes) {
    b->hash = data_hash(bytes, b->size);
    b->is_hashed = 1;
}

static void data_compare(DataBuffer *b, char *bytes) {
    if (b->is_hashed && b->hash != data_hash(bytes, b->size)) b->is_output = 1;
    b->is_hashed = 0;
}

static uint64_t data_turn; /* which spoiling this is: no two are alike */

static void data_word(uint32_t *word, uint64_t i) {
    float number;
    memcpy(&number, word, 4);
    uint64_t random = fault_random(data_turn << 32 | i);
    if (fault_is("nan")) *word = 0x7FC00000u;
    if (fault_is("unstable")) *word ^= (uint32_t)random & 0x0000FFFFu;
    if (fault_is("unstable-zero") && (*word << 1) == 0) *word = (uint32_t)(random << 31);
    if (fault_is("wrong") && i % 16 == 0) {
        number = number * 1.5f + 1.0f;
        memcpy(word, &number, 4);
    }
}

static void data_save(DataBuffer *b, char *bytes) {
    if (b->saved == NULL) b->saved = malloc(b->size);
    if (b->saved != NULL) memcpy(b->saved, bytes, b->size);
}

/* Give what the first run left here, whichever run that was: a device's first work of all may be a
 * question about the device, in a buffer that is never used again. */
static void data_repeat(DataBuffer *b, char *bytes) {
    if (b->saved != NULL) memcpy(bytes, b->saved, b->size);
    else data_save(b, bytes);
}

static void data_spoil_one(DataBuffer *b, char *bytes) {
    if (fault_is("zero-output")) memset(bytes, 0, b->size);
    if (fault_is("torn-output")) memset(bytes + b->size / 4 * 3, 0, b->size - b->size / 4 * 3);
    if (fault_is("stale")) data_repeat(b, bytes);
    for (uint64_t i = 0; i < b->size / 4; i++) data_word((uint32_t *)(void *)bytes + i, i);
}

static void data_each(VkDevice device, MapMemory map, UnmapMemory unmap, DataVisit visit,
                      int outputs) {
    int has_readback = 0;
    for (size_t i = 0; i < data_buffer_count; i++) {
        DataBuffer *b = &data_buffers[i];
        has_readback |= b->device == device && b->is_output && !(b->usage & VK_USE_STORAGE);
    }
    for (size_t i = 0; i < data_buffer_count; i++) {
        DataBuffer *b = &data_buffers[i];
        if (b->device != device || device == NULL || !b->is_bound || b->is_output != outputs)
            continue;
        if (outputs && has_readback && (b->usage & VK_USE_STORAGE)) continue;
        data_visit(b, map, unmap, visit);
    }
}

/* Before work starts: remember what buffers hold that are not known as outputs yet. */
static void data_before(VkDevice device, MapMemory map, UnmapMemory unmap) {
    if (!is_data_fault()) return;
    pthread_mutex_lock(&data_lock);
    data_each(device, map, unmap, data_note, 0);
    pthread_mutex_unlock(&data_lock);
}

/* After it: find the outputs, and spoil them if the fault is due. */
static void data_after(VkDevice device, MapMemory map, UnmapMemory unmap, int is_due) {
    if (!is_data_fault()) return;
    pthread_mutex_lock(&data_lock);
    data_each(device, map, unmap, data_compare, 0);
    data_turn++;
    if (is_due) data_each(device, map, unmap, data_spoil_one, 1);
    else if (fault_is("stale")) data_each(device, map, unmap, data_save, 1);
    pthread_mutex_unlock(&data_lock);
}
#endif
