#include "base/cpu_quota.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cgroup.h"

/* Reads a file to a text; false: it is absent. */
static bool read_text(const char *folder, const char *name, char *text, size_t n)
{
    char path[CGROUP_PATH_BYTES + 32];
    struct buf file = { 0 };
    bool is_read;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    is_read = cgroup_read_file(path, &file, NULL) == 0;
    if (is_read)
        snprintf(text, n, "%s", file.data);
    buf_fini(&file);
    return is_read;
}

/* Sets *quota and *period in microseconds. false: no quota. */
static bool read_group(const char *folder, int version, double *quota, double *period)
{
    char text[64], length[64];

    if (version == 2) /* "200000 100000", or "max 100000" */
        return read_text(folder, "cpu.max", text, sizeof(text)) &&
               sscanf(text, "%lf %lf", quota, period) == 2;
    return read_text(folder, "cpu.cfs_quota_us", text, sizeof(text)) && /* -1: none */
           read_text(folder, "cpu.cfs_period_us", length, sizeof(length)) &&
           sscanf(text, "%lf", quota) == 1 && sscanf(length, "%lf", period) == 1;
}

static void read_version(const char *root, int version, struct cpu_quota *out)
{
    char folder[CGROUP_PATH_BYTES];
    struct cgroup g;

    if (cgroup_find(root, version, "cpu", &g, NULL) < 0)
        return;
    memcpy(folder, g.own, sizeof(folder));
    do {
        double quota = 0, period = 0;

        if (!read_group(folder, version, &quota, &period) || !(quota > 0) || !(period > 0) ||
            (out->processors > 0 && quota / period >= out->processors))
            continue;
        out->processors = quota / period;
        snprintf(out->source, sizeof(out->source), "%.450s/%s", folder + strlen(root),
                 version == 2 ? "cpu.max" : "cpu.cfs_quota_us");
    } while (cgroup_parent(&g, folder));
}

void cpu_quota_read(const char *root, struct cpu_quota *out)
{
    *out = (struct cpu_quota){ .processors = 0 };
    read_version(root, 2, out);
    read_version(root, 1, out);
}

uint32_t cpu_quota_limit(uint32_t cores)
{
    struct cpu_quota q;

    cpu_quota_read("", &q);
    if (q.processors <= 0 || q.processors >= cores)
        return cores;
    return q.processors < 1 ? 1 : (uint32_t)q.processors;
}
