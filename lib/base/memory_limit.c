#include "base/memory_limit.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/cgroup.h"
#include "base/err.h"
#include "base/text.h"

/* Version 1 writes "no limit" as the largest number of whole pages. */
#define NO_LIMIT ((uint64_t)1 << 62)

struct reading {
    const char *root;
    bool has_limit;
    struct memory_limit best;
    struct buf file; /* the file that is being read */
};

static void ignore(struct reading *r, const char *why)
{
    if (r->best.ignored[0] == '\0')
        snprintf(r->best.ignored, sizeof(r->best.ignored), "%s", why);
}

static uint64_t left_of(uint64_t bytes, uint64_t used)
{
    return bytes > used ? bytes - used : 0;
}

/* Keeps the limit if fewer bytes are left than of the one that was kept. */
static void consider(struct reading *r, enum memory_limit_kind kind, uint64_t bytes, uint64_t used,
                     const char *source)
{
    struct memory_limit *m = &r->best;
    uint64_t left = left_of(bytes, used), before = left_of(m->bytes, m->used);

    if (r->has_limit && (left > before || (left == before && bytes >= m->bytes)))
        return;
    r->has_limit = true;
    m->kind = kind;
    m->bytes = bytes;
    m->used = used;
    snprintf(m->source, sizeof(m->source), "%s", source);
}

/* Reads a file to r->file. false: it is absent, or cannot be read, which is noted. */
static bool load(struct reading *r, const char *path)
{
    struct err err;
    int rc;

    buf_reset(&r->file);
    rc = cgroup_read_file(path, &r->file, &err);
    if (rc < 0 && rc != ERR_NOENT)
        ignore(r, err.text);
    return rc == 0;
}

/* Parses the word at `at`, which a blank, a newline or the end follows. */
static bool parse_number(const char *at, uint64_t *out)
{
    char word[32];
    size_t n = strcspn(at, " \t\n");

    if (n >= sizeof(word))
        return false;
    memcpy(word, at, n);
    word[n] = '\0';
    return text_u64(word, UINT64_MAX, out);
}

/* Returns the value on the line that begins with `key`, after blanks; NULL: there is no such line. */
static const char *find_value(const char *text, const char *key)
{
    size_t n = strlen(key);

    for (const char *at = text; at != NULL; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (strncmp(at, key, n) == 0 && (at[n] == ' ' || at[n] == '\t'))
            return at + n + strspn(at + n, " \t");
    }
    return NULL;
}

/* ---- control groups ---- */

/* Reads a file with one number. false: absent or "max", or malformed, which is noted. */
static bool read_number(struct reading *r, const char *path, uint64_t *out)
{
    char why[MEMORY_LIMIT_IGNORED_BYTES];

    if (!load(r, path) || strcmp(r->file.data, "max\n") == 0)
        return false;
    if (parse_number(r->file.data, out) &&
        strcmp(r->file.data + strcspn(r->file.data, " \t\n"), "\n") == 0)
        return true;
    snprintf(why, sizeof(why), "'%s': expected a number of bytes, found '%.40s'", path,
             r->file.data);
    ignore(r, why);
    return false;
}

/* Returns the file pages that the kernel frees first; 0: unknown, so that all pages count. */
static uint64_t read_inactive(struct reading *r, const char *folder, const char *key)
{
    char path[CGROUP_PATH_BYTES + 32], why[MEMORY_LIMIT_IGNORED_BYTES];
    const char *value;
    uint64_t bytes = 0;

    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    if (!load(r, path))
        return 0;
    value = find_value(r->file.data, key);
    if (value != NULL && parse_number(value, &bytes))
        return bytes;
    snprintf(why, sizeof(why), "'%s': expected a line '%s BYTES'", path, key);
    ignore(r, why);
    return 0;
}

static void read_group(struct reading *r, int version, const char *folder)
{
    static const char *const names[2][3] = { { "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file" },
                                { "memory.max", "memory.current", "inactive_file" } };
    const char *const *name = names[version - 1];
    char path[CGROUP_PATH_BYTES + 32], source[MEMORY_LIMIT_SOURCE_BYTES],
        why[MEMORY_LIMIT_IGNORED_BYTES];
    uint64_t bytes, used, inactive;

    snprintf(path, sizeof(path), "%s/%s", folder, name[0]);
    if (!read_number(r, path, &bytes) || bytes >= NO_LIMIT)
        return;
    snprintf(source, sizeof(source), "cgroup %s", path + strlen(r->root));
    snprintf(path, sizeof(path), "%s/%s", folder, name[1]);
    if (!read_number(r, path, &used)) {
        snprintf(why, sizeof(why), "%s: '%s' has no number", source, path);
        ignore(r, why);
        return;
    }
    inactive = read_inactive(r, folder, name[2]);
    consider(r, MEMORY_LIMIT_CGROUP, bytes, left_of(used, inactive), source);
}

static void read_groups(struct reading *r, int version)
{
    char folder[CGROUP_PATH_BYTES];
    struct cgroup g;
    struct err err;
    int rc = cgroup_find(r->root, version, "memory", &g, &err);

    if (rc < 0) {
        if (rc != ERR_NOENT)
            ignore(r, err.text);
        return;
    }
    memcpy(folder, g.own, sizeof(folder));
    do
        read_group(r, version, folder);
    while (cgroup_parent(&g, folder));
}

/* ---- the host, and the limits of the process ---- */

/* Reads "KEY   123 kB" of r->file. false: absent or malformed. */
static bool read_kib(const struct reading *r, const char *key, uint64_t *bytes)
{
    const char *value = find_value(r->file.data, key);
    uint64_t kib;

    if (value == NULL || !parse_number(value, &kib) || kib > UINT64_MAX >> 10 ||
        strncmp(value + strspn(value, "0123456789"), " kB\n", 4) != 0)
        return false;
    *bytes = kib << 10;
    return true;
}

static void read_host(struct reading *r)
{
    char path[CGROUP_PATH_BYTES], why[MEMORY_LIMIT_IGNORED_BYTES];
    uint64_t total, available;

    snprintf(path, sizeof(path), "%s/proc/meminfo", r->root);
    if (!load(r, path))
        return;
    if (read_kib(r, "MemTotal:", &total) && read_kib(r, "MemAvailable:", &available)) {
        consider(r, MEMORY_LIMIT_HOST, total, left_of(total, available),
                 "memory of the host (/proc/meminfo)");
        (void)read_kib(r, "SwapTotal:", &r->best.swap); /* a kernel without swap has no such line */
        return;
    }
    snprintf(why, sizeof(why), "'%s': expected lines 'MemTotal: N kB' and 'MemAvailable: N kB'",
             path);
    ignore(r, why);
}

/* Finds the soft limit in r->file. false: unlimited, absent, or malformed, which is noted. */
static bool find_rlimit(struct reading *r, const char *path, const char *key, uint64_t *bytes)
{
    const char *value = find_value(r->file.data, key);
    char why[MEMORY_LIMIT_IGNORED_BYTES];

    if (value != NULL && parse_number(value, bytes))
        return true;
    if (value != NULL && text_starts(value, "unlimited "))
        return false;
    snprintf(why, sizeof(why), "'%s': expected a line '%s N bytes'", path, key);
    ignore(r, why);
    return false;
}

static void read_process(struct reading *r)
{
    char path[CGROUP_PATH_BYTES], why[MEMORY_LIMIT_IGNORED_BYTES];
    uint64_t bytes[2] = { 0 }, used[2];
    bool has[2] = { false, false };

    snprintf(path, sizeof(path), "%s/proc/self/limits", r->root);
    if (load(r, path)) {
        has[0] = find_rlimit(r, path, "Max address space", &bytes[0]);
        has[1] = find_rlimit(r, path, "Max data size", &bytes[1]);
    }
    snprintf(path, sizeof(path), "%s/proc/self/status", r->root);
    if (!load(r, path))
        return;
    if (read_kib(r, "VmSize:", &used[0]) && read_kib(r, "VmData:", &used[1]) &&
        read_kib(r, "VmRSS:", &r->best.resident)) {
        if (has[0])
            consider(r, MEMORY_LIMIT_ADDRESSES, bytes[0], used[0], "RLIMIT_AS");
        if (has[1])
            consider(r, MEMORY_LIMIT_DATA, bytes[1], used[1], "RLIMIT_DATA");
        return;
    }
    snprintf(why, sizeof(why),
             "'%s': expected lines 'VmSize: N kB', 'VmData: N kB' and 'VmRSS: N kB'", path);
    ignore(r, why);
}

int memory_limit_read(const char *root, struct memory_limit *out, struct err *err)
{
    struct reading r = { .root = root };

    read_host(&r);
    read_groups(&r, 2);
    read_groups(&r, 1);
    read_process(&r);
    buf_fini(&r.file);
    if (!r.has_limit)
        return err_set(err, ERR_NOENT, "no limit of the memory is known: %s",
                       r.best.ignored[0] != '\0' ? r.best.ignored : "/proc is absent");
    if (r.best.kind == MEMORY_LIMIT_DATA || r.best.kind == MEMORY_LIMIT_ADDRESSES)
        r.best.swap = 0;
    *out = r.best;
    return 0;
}
