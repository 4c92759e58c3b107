#include "daemon/doc_path.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/process.h"

static const char *find(const char *name, char *out, size_t n)
{
    static const char *const folders[] = { "share/doc/trainerd/", "" };
    char prefix[PATH_MAX], *slash;

    if (!process_folder(prefix, sizeof(prefix)))
        return name;
    slash = strrchr(prefix, '/'); /* the prefix of an installation, or the source tree */
    if (slash != NULL)
        *slash = '\0';
    for (size_t i = 0; i < COUNT_OF(folders); i++)
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
        size_t len = strcspn(text, " \n"), gap = strspn(text + len, " \n");
        char word[256], path[PATH_MAX + 300];
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
