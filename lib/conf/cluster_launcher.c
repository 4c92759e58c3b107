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
    "MV2_COMM_WORLD_RANK",
    "HOROVOD_RANK",
    "JSM_NAMESPACE_RANK",
    "FLUX_TASK_RANK",
    "PALS_RANKID",
    "ALPS_APP_PE",
};

/* Sets *out to the n of a host name "trainer-<n>" or "trainer-<n>.domain". Returns false if it has
 * none. */
static bool read_host_suffix(const struct cluster_draft *d, uint64_t *out)
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

static int read_variables(const struct cluster_draft *d, const char **where, uint64_t *index,
                          struct err *err)
{
    const char *const *names = d->rank_variable != NULL ? &d->rank_variable : variables;
    size_t n = d->rank_variable != NULL ? 1 : COUNT_OF(variables);

    for (size_t i = 0; i < n; i++) {
        const char *text = cluster_env(d, names[i]);
        uint64_t value;

        if (text == NULL || text[0] == '\0')
            continue;
        if (!text_u64(text, CLUSTER_MAX_INDEX, &value))
            return cluster_reject(d, NULL, err,
                                  "no task index is given, and %s='%.64s' is not an index: "
                                  "expected 0, 1, ...; correct it, or use --task TYPE:INDEX",
                                  names[i], text);
        if (*where != NULL && value != *index)
            return cluster_reject(d, NULL, err,
                                  "%s has the task index %" PRIu64 ", but %s has %" PRIu64
                                  "; unset one of them, or use --task TYPE:INDEX",
                                  *where, *index, names[i], value);
        if (*where == NULL)
            *where = names[i];
        *index = value;
    }
    return 0;
}

bool cluster_is_launched(const struct cluster_opts *opts)
{
    for (size_t i = 0; i < COUNT_OF(variables); i++)
        if (opts->env(opts->env_arg, variables[i]) != NULL)
            return true;
    return false;
}

int cluster_launcher_index(struct cluster_draft *d, uint32_t limit, const char *what, bool *found,
                           uint32_t *index, const char **where, struct err *err)
{
    const char *source = NULL;
    uint64_t value = 0, suffix;
    int rc;

    *found = false;
    if (limit == 0)
        return 0;
    rc = read_variables(d, &source, &value, err);
    if (rc < 0)
        return rc;
    if (source != NULL && value >= limit)
        return cluster_reject(d, d->self_at, err,
                              "%s is %" PRIu64 ", but the cluster has only %" PRIu32
                              " %s; start as many tasks as are listed",
                              source, value, limit, what);
    /* Without a document the source is Slurm, where the numbers of the nodes are arbitrary. */
    if (d->doc != NULL && read_host_suffix(d, &suffix)) {
        if (suffix >= limit)
            cluster_note(d,
                         "the number at the end of the host name '%s' is not a task index: the "
                         "cluster has %" PRIu32 " %s",
                         d->opts->hostname, limit, what);
        else if (source != NULL && suffix != value)
            return cluster_reject(d, NULL, err,
                                  "%s has the task index %" PRIu64 ", but the host "
                                  "name '%s' has %" PRIu64 "; use --task TYPE:INDEX",
                                  source, value, d->opts->hostname, suffix);
        else if (source == NULL) {
            source = "the host name";
            value = suffix;
        }
    }
    *found = source != NULL;
    *index = (uint32_t)value;
    if (*found)
        *where = source;
    return 0;
}
