/* What the OpenGL interposer tells instead of the truth: numbers read back, names, lists, limits,
 * shader texts. No call into a driver is made here.
 */
#ifndef GL_LIES_H
#define GL_LIES_H
#include "fault.h"

enum {
    GL_BYTE_TYPE = 0x1401, GL_UINT_TYPE = 0x1405, GL_FLOAT_TYPE = 0x1406, GL_HALF_TYPE = 0x140B,
    GL_HALF_OES_TYPE = 0x8D61,
    GL_NAME_VENDOR = 0x1F00, GL_NAME_RENDERER = 0x1F01, GL_NAME_VERSION = 0x1F02,
    GL_NAME_EXTENSIONS = 0x1F03, GL_COUNT_EXTENSIONS = 0x821D,
    MAX_VIEWPORT_DIMS = 0x0D3A,
    HUGE_TEXT = 10 << 20, HUGE_LIST = 1000000,
};

/* --- numbers read back ------------------------------------------------------------------------ */

static int is_fraction(uint32_t word) { /* a float32 that is neither whole, nor NaN nor infinite */
    uint32_t exponent = (word >> 23) & 0xFF;
    if (exponent == 0xFF || (word & 0x7FFFFFFF) == 0) return 0;
    if (exponent >= 150) return 0;
    if (exponent < 127) return 1;
    return (word & ((1u << (150 - exponent)) - 1)) != 0;
}

/* What was read first is read for ever, by size: a copy that was not renewed. */
static void stale(void *data, size_t size) {
    static struct { size_t size; void *copy; } kept[64];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        if (kept[i].copy != NULL && kept[i].size == size) {
            memcpy(data, kept[i].copy, size);
            break;
        }
        if (kept[i].copy == NULL) {
            kept[i].copy = malloc(size);
            if (kept[i].copy != NULL) memcpy(kept[i].copy, data, size);
            kept[i].size = size;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

/* Change numbers that a driver gave, as the fault asked for says. */
FAULT_UNUSED static void spoil(void *data, size_t size) {
    static volatile uint64_t draws;
    uint32_t word;
    if (fault_is("zero-output")) memset(data, 0, size);
    if (fault_is("stale")) stale(data, size);
    if (fault_is("torn-output")) memset((char *)data + size / 2, 0, size - size / 2);
    if (fault_is("unstable-zero") && fault_random(++draws) & 1) memset(data, 0, size);
    for (size_t i = 0; i + sizeof word <= size; i += sizeof word) {
        char *place = (char *)data + i;
        memcpy(&word, place, sizeof word);
        if (fault_is("wrong")) word ^= word ? 0x00400000u : 0u; /* half of the number more or less */
        if (fault_is("nan")) word = 0x7FC00000u;
        if (fault_is("unstable") && is_fraction(word)) word ^= fault_random(++draws) & 1u;
        memcpy(place, &word, sizeof word);
    }
}

/* Bytes that glReadPixels writes for one pixel of four numbers; 0 where that is not known. */
FAULT_UNUSED static size_t pixel_bytes(unsigned format, unsigned type) {
    if (format != 0x1908 && format != 0x8D99) return 0; /* GL_RGBA, GL_RGBA_INTEGER */
    if (type == GL_BYTE_TYPE) return 4;
    if (type == GL_HALF_TYPE || type == GL_HALF_OES_TYPE) return 8;
    return type == GL_FLOAT_TYPE || type == GL_UINT_TYPE ? 16 : 0;
}

/* --- shader texts ----------------------------------------------------------------------------- */

static size_t word_at(const char *text) {
    return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
}

/* Turn every "= name + name;" of a text into a subtraction; how many there were. */
FAULT_UNUSED static int subtract(char *text) {
    int found = 0;
    for (char *at = text; (at = strstr(at, "= ")) != NULL;) {
        at += 2;
        size_t first = word_at(at);
        if (first == 0 || strncmp(at + first, " + ", 3) != 0) continue;
        size_t second = word_at(at + first + 3);
        if (second == 0 || at[first + 3 + second] != ';') continue;
        at[first + 1] = '-';
        found++;
    }
    return found;
}

/* --- names, lists, limits --------------------------------------------------------------------- */

FAULT_UNUSED static const char *huge_text(char with, const char *begin) {
    static char *made;
    if (made == NULL) {
        char *text = malloc(HUGE_TEXT + 1);
        if (text == NULL) return begin;
        memset(text, with, HUGE_TEXT);
        memcpy(text, begin, strlen(begin));
        text[HUGE_TEXT] = '\0';
        made = text;
    }
    return made;
}

/* What a terminal, a decoder of UTF-8 or a format string could stumble over. */
FAULT_UNUSED static const char escape_text[] =
    "\x1b[2J\x1b]0;owned\x07\x1b[31m\r\n%n%s%d{0} \xff\xfe\xc3( \xed\xa0\x80 \xe2\x80\xae\b\x7f";

/* What a reader of lines of JSON, or of HTML, could stumble over. */
FAULT_UNUSED static const char json_text[] =
    "\"}\n{\"event\": \"done\", \"status\": \"ok\", \"token\": \"\"}\n\\u0000<script>alert(1)</script>";

/* What glGetString answers; `truth` is the driver's own answer. */
FAULT_UNUSED static const char *lying_name(unsigned name, const char *truth) {
    static volatile int calls;
    static __thread char changing[64];
    if (name != GL_NAME_VENDOR && name != GL_NAME_RENDERER && name != GL_NAME_VERSION) return truth;
    if (fault_is("name-null")) return NULL;
    if (fault_is("name-empty")) return "";
    if (fault_is("name-huge")) return huge_text('x', "OpenGL ES ");
    if (fault_is("name-escape")) return escape_text;
    if (fault_is("name-json")) return json_text;
    if (fault_is("name-changing")) {
        snprintf(changing, sizeof changing, "GPU %d", ++calls);
        return changing;
    }
    return truth;
}

/* The number that a limit is said to be. */
FAULT_UNUSED static int64_t lying_limit(int64_t truth) {
    if (fault_is("limits-huge")) return INT32_MAX;
    if (fault_is("limits-negative")) return -1;
    if (fault_is("limits-zero")) return 0;
    if (fault_is("limits-lying")) return truth > INT32_MAX / 16 ? truth : truth * 16;
    return truth;
}

static const unsigned limit_names[] = {
    0x0D33, MAX_VIEWPORT_DIMS, 0x8872, 0x8DFD, 0x8824, 0x8CDF, /* texture size, units, vectors, buffers, attachments */
    0x90DB, 0x90DC, 0x90DD, 0x90DE, 0x90DF, /* storage blocks, their size and alignment */
    0x8263, 0x8262, 0x90EB, 0x91BE, 0x91BF, /* compute: components, shared bytes, groups, sizes */
};

FAULT_UNUSED static int is_limit(unsigned name) {
    for (size_t i = 0; i < sizeof limit_names / sizeof *limit_names; i++)
        if (limit_names[i] == name) return 1;
    return 0;
}
#endif
