#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log_sink.h"

void check_failed(const char *cond, const char *file, int line, const char *func)
{
    char text[512];
    int n = snprintf(text, sizeof(text), "%s%s:%d: %s: CHECK(%s) failed: this is a bug, stopping\n",
                     log_sink_prefix(LOG_ERROR), file, line, func, cond);

    if (n >= (int)sizeof(text))
        n = (int)sizeof(text) - 1;
    /* Bypasses the log, because its lock or the heap may be corrupt. */
    if (n > 0)
        log_sink_write_final(text, (size_t)n);
    abort();
}
