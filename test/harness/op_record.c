/* op_record.c - appends lines to the file of TRAINERD_OPS_RECORD. */
#include "harness/op_record.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static bool is_listed(const struct op_def *def)
{
    size_t n;
    const struct op_def *const *all = op_all(&n);

    for (size_t i = 0; i < n; i++)
        if (all[i] == def)
            return true;
    return false;
}

void op_record(const struct op_def *def, enum op_record_kind kind)
{
    const char *path = getenv("TRAINERD_OPS_RECORD");
    char line[32];
    int n, fd;

    if (path == NULL || !is_listed(def))
        return;
    n = snprintf(line, sizeof(line), "%u %c\n", op_row(def), kind);
    fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, line, (size_t)n) != n)
        fail_msg("TRAINERD_OPS_RECORD: write '%s': %s", path, strerror(errno));
    close(fd);
}

bool op_record_wants(const struct op_def *def)
{
    const char *only = getenv("TRAINERD_OPS_ONLY");

    return only == NULL || !is_listed(def) || strcmp(only, def->name) == 0;
}
