#include "daemon/doc_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Writes the folder above that of this program: the prefix of an installation, or the source tree. */
static void find_prefix(char *out, size_t n)
{
    ssize_t len = readlink("/proc/self/exe", out, n - 1);

    out[len > 0 ? len : 0] = '\0';
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(out, '/');

        if (slash != NULL)
            *slash = '\0';
    }
}

static const char *find(const char *name, char *out, size_t n)
{
    static const char *const folders[] = { "share/doc/trainerd/", "" };
    char prefix[4096];

    find_prefix(prefix, sizeof(prefix));
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        if (snprintf(out, n, "%s/%s%s", prefix, folders[i], name) < (int)n &&
            access(out, R_OK) == 0)
            return out;
    return name;
}

void doc_path_replace(const char *text, char *out, size_t n)
{
    size_t at = 0;

    out[0] = '\0';
    while (*text != '\0' && at + 1 < n) {
        size_t len = strcspn(text, " "), gap = strspn(text + len, " ");
        char word[256], path[4400];
        int printed;

        snprintf(word, sizeof(word), "%.*s", (int)len, text);
        if (len > 3 && len < sizeof(word) && strcmp(word + len - 3, ".md") == 0)
            printed = snprintf(out + at, n - at, "%s%.*s", find(word, path, sizeof(path)), (int)gap,
                               text + len);
        else
            printed = snprintf(out + at, n - at, "%.*s", (int)(len + gap), text);
        at = (size_t)printed < n - at ? at + (size_t)printed : n - 1;
        text += len + gap;
    }
}
