/* ident.c - compares the identities of two tasks: what must be equal on every task. */
#include "member/member_priv.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/text.h"

enum { EXCERPT_BYTES = 240, BEFORE_BYTES = 80, KEYS_BYTES = 600 };

/* Ordered by cause: a difference in an earlier row may cause a difference in a later row. */
static const struct row {
    size_t offset; /* of the field that is compared */
    size_t shown;  /* of the field that is printed */
    const char *what, *remedy;
    bool is_of_trainers; /* compared only between training tasks: depends on the devices */
} rows[] = {
#define ROW(compare_, show_, what_, remedy_, ...)                                                  \
    {                                                                                              \
        offsetof(struct member_ident, compare_), offsetof(struct member_ident, show_), what_,      \
            remedy_, __VA_ARGS__                                                                   \
    }
    ROW(version, version, "the version of trainerd",
        "versions that differ in the last number alone can train together: run one release on every "
        "task", false),
    ROW(protocol, protocol, "the protocol",
        "these versions cannot train together: stop all tasks, then start them with one version",
        false),
    ROW(cluster_hash, cluster, "the cluster", "give every task the same cluster specification",
        false),
    ROW(job_digest, job_digest, "the digest of the job", "give every task the same job file",
        false),
    ROW(devices, devices, "the kind of device", "use the same --devices on every task", true),
    ROW(kernels, kernels, "kernel library and instruction set",
        "sums would differ in the last bits: use hosts and releases of one kind", true),
    ROW(code, code, "the code that computes",
        "the results of these versions may differ in the last bits: stop all tasks, then start them "
        "with one version",
        false),
    ROW(nccl, nccl, "the version of NCCL", "install the same NCCL on every task", true),
#undef ROW
};

static const char *field(const struct member_ident *i, size_t offset)
{
    const char *s = *(const char *const *)((const char *)i + offset);

    return s != NULL ? s : "";
}

struct member_ident member_ident_copy(const struct member_ident *i, struct arena *a)
{
    struct member_ident copy = {
        .version = arena_strdup(a, i->version),
        .job_digest = arena_strdup(a, i->job_digest),
        .cluster_hash = arena_strdup(a, i->cluster_hash),
        .cluster = arena_strdup(a, i->cluster),
        .devices = arena_strdup(a, i->devices),
        .kernels = arena_strdup(a, i->kernels),
        .nccl = arena_strdup(a, i->nccl),
        .protocol = arena_strdup(a, i->protocol != NULL ? i->protocol : ""),
        .code = arena_strdup(a, i->code != NULL ? i->code : ""),
        .job = arena_strdup(a, i->job != NULL ? i->job : ""),
    };

    for (size_t r = 0; r < COUNT_OF(rows); r++)
        CHECK(field(&copy, rows[r].offset) != NULL && field(&copy, rows[r].shown) != NULL);
    CHECK(copy.job != NULL);
    return copy;
}

/* Returns the length of "MAJOR.MINOR", without the patch number. */
static size_t release_length(const char *version)
{
    size_t major = strcspn(version, ".");

    return version[major] == '\0' ? major : major + 1 + strcspn(version + major + 1, ".");
}

static bool is_same_release(const char *a, const char *b)
{
    size_t n = release_length(a);

    return n == release_length(b) && strncmp(a, b, n) == 0;
}

static bool is_equal(const struct row *r, const struct member_ident *a,
                     const struct member_ident *b)
{
    if (r->offset == offsetof(struct member_ident, version))
        return is_same_release(a->version, b->version);
    return strcmp(field(a, r->offset), field(b, r->offset)) == 0;
}

/* Writes the part of `s` around byte `at`, because `s` may be long. */
static void excerpt(const char *s, size_t at, char out[EXCERPT_BYTES + 8])
{
    size_t n = strlen(s), from = 0, to = n;

    if (n > EXCERPT_BYTES) {
        if (at > BEFORE_BYTES)
            from = text_utf8_cut(s, at - BEFORE_BYTES);
        if (n - from > EXCERPT_BYTES)
            to = from + text_utf8_cut(s + from, EXCERPT_BYTES);
    }
    snprintf(out, EXCERPT_BYTES + 8, "%s%.*s%s", from > 0 ? "..." : "", (int)(to - from), s + from,
             to < n ? "..." : "");
}

bool member_ident_agrees(const struct member_ident *theirs, uint32_t their_devices,
                         const struct member_ident *ours, uint32_t our_devices, char *out,
                         size_t n_out)
{
    bool both_train = their_devices > 0 && our_devices > 0;
    char keys[KEYS_BYTES];

    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        const char *a = field(theirs, rows[r].shown), *b = field(ours, rows[r].shown);
        char a_text[EXCERPT_BYTES + 8], b_text[EXCERPT_BYTES + 8];
        size_t same = 0;

        if ((rows[r].is_of_trainers && !both_train) || is_equal(&rows[r], theirs, ours))
            continue;
        if (rows[r].offset == offsetof(struct member_ident, job_digest) &&
            member_job_difference(theirs->job, ours->job, keys, sizeof(keys))) {
            snprintf(out, n_out, "the job differs: %s; %s", keys, rows[r].remedy);
            return false;
        }
        while (a[same] != '\0' && a[same] == b[same])
            same++;
        excerpt(a, same, a_text);
        excerpt(b, same, b_text);
        snprintf(out, n_out, "%s differs: it has '%s', the coordinator has '%s'; %s", rows[r].what,
                 a_text, b_text, rows[r].remedy);
        return false;
    }
    if (both_train && their_devices != our_devices) {
        snprintf(out, n_out,
                 "the number of devices differs: it has %u, the coordinator has %u; "
                 "use the same --devices on every task",
                 their_devices, our_devices);
        return false;
    }
    return true;
}
