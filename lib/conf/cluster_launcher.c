/* cluster_launcher.c - the index that mpirun, srun or the name of a pod defines.
 *
 * Two sources that disagree are an error. The host name is less reliable: a number that is not a
 * valid index (ip-10-0-0-12) is ignored with a note. */
#include "conf/cluster_launcher.h"

#include <inttypes.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/text.h"
#include "conf/cluster_draft.h"

static const char *const variables[] = {
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
};

/* Sets *out to the n of a host name "trainer-<n>" or "trainer-<n>.domain". Returns false if it has
 * none. */
static bool host_suffix(const struct cluster_draft *d, uint64_t *out)
{
    const char *host = d->opts->hostname;
    size_t n = host != NULL ? strcspn(host, ".") : 0;
    size_t digits = 0;
    char text[16];

    while (digits < n && host[n - 1 - digits] >= '0' && host[n - 1 - digits] <= '9')
        digits++;
    if (digits == 0 || digits >= sizeof(text) || digits + 1 >= n || host[n - 1 - digits] != '-')
        return false;
    memcpy(text, host + n - digits, digits);
    text[digits] = '\0';
    return text_u64(text, UINT64_MAX, out);
}

static int from_variables(const struct cluster_draft *d, const char **where, uint64_t *index,
                          struct err *err)
{
    for (size_t i = 0; i < COUNT_OF(variables); i++) {
        const char *text = cluster_env(d, variables[i]);
        uint64_t value;

        if (text == NULL || text[0] == '\0')
            continue;
        if (!text_u64(text, CLUSTER_MAX_INDEX, &value))
            return cluster_refuse(d, NULL, err,
                                  "no task index is given, and %s='%.64s' is none: "
                                  "expected 0, 1, ...; correct it, or use --task TYPE:INDEX",
                                  variables[i], text);
        if (*where != NULL && value != *index)
            return cluster_refuse(d, NULL, err,
                                  "%s says this is task %" PRIu64 ", but %s says %" PRIu64
                                  "; unset one of them, or use --task TYPE:INDEX",
                                  *where, *index, variables[i], value);
        if (*where == NULL)
            *where = variables[i];
        *index = value;
    }
    return 0;
}

int cluster_launcher_index(struct cluster_draft *d, uint32_t limit, const char *what, bool *found,
                           uint32_t *index, const char **where, struct err *err)
{
    const char *named_by = NULL;
    uint64_t value = 0, suffix;
    int rc;

    *found = false;
    if (limit == 0)
        return 0;
    rc = from_variables(d, &named_by, &value, err);
    if (rc < 0)
        return rc;
    if (named_by != NULL && value >= limit)
        return cluster_refuse(d, d->self_at, err,
                              "%s is %" PRIu64 ", but the cluster has only %" PRIu32
                              " %s; start as many tasks as are listed",
                              named_by, value, limit, what);
    /* Without a document the source is Slurm, where the numbers of the nodes are arbitrary. */
    if (d->doc != NULL && host_suffix(d, &suffix)) {
        if (suffix >= limit)
            cluster_note(d,
                         "the number at the end of the host name '%s' is no task index: the "
                         "cluster has %" PRIu32 " %s",
                         d->opts->hostname, limit, what);
        else if (named_by != NULL && suffix != value)
            return cluster_refuse(d, NULL, err,
                                  "%s says this is task %" PRIu64 ", but the host "
                                  "name '%s' says %" PRIu64 "; use --task TYPE:INDEX",
                                  named_by, value, d->opts->hostname, suffix);
        else if (named_by == NULL) {
            named_by = "the host name";
            value = suffix;
        }
    }
    *found = named_by != NULL;
    *index = (uint32_t)value;
    if (*found)
        *where = named_by;
    return 0;
}
