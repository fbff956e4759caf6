/* The one function of Android's C library that gpuedge asks: properties from a file of lines
 * NAME=VALUE, which ANDROID_PROPERTIES names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int __system_property_get(const char *name, char *value) {
    const char *path = getenv("ANDROID_PROPERTIES");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    size_t size = strlen(name);
    value[0] = '\0';
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (!strncmp(line, name, size) && line[size] == '=') {
            strncpy(value, line + size + 1, 91);
            value[91] = '\0';
        }
    }
    if (file) fclose(file);
    return (int)strlen(value);
}
