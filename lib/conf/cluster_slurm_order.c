/* cluster_slurm_order.c - on which node of a Slurm step each task runs.
 *
 *   block     tasks 0, 1, ... fill the first node, then the second (the default of srun)
 *   cyclic    in each round every node that is not full receives one task
 *   plane=N   in each round every node that is not full receives up to N tasks
 *
 * block is a plane of the size of the step. SLURM_DISTRIBUTION may also have the distribution of
 * tasks over sockets and cores after a colon, and words after a comma; both are ignored. */
#include "conf/cluster_slurm_order.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/text.h"
#include "conf/cluster_draft.h"

static bool has_word(const char *text, const char *word)
{
    size_t n = strcspn(text, ":,=");

    return strlen(word) == n && strncasecmp(text, word, n) == 0;
}

/* Sets *plane to the number of tasks that a node receives in each round. */
static int read_plane(const struct cluster_draft *d, uint32_t *plane, struct err *err)
{
    const char *text = cluster_env(d, "SLURM_DISTRIBUTION");
    const char *size = cluster_env(d, "SLURM_DIST_PLANESIZE");
    uint64_t value = 0;

    *plane = UINT32_MAX;
    if (text == NULL || text[0] == '\0' || has_word(text, "block") || has_word(text, "*"))
        return 0;
    if (has_word(text, "cyclic")) {
        *plane = 1;
        return 0;
    }
    if (has_word(text, "plane")) {
        if (strncmp(text, "plane=", 6) == 0)
            size = text + 6;
        if (size != NULL && text_u64(size, CLUSTER_MAX_SLURM, &value) && value > 0) {
            *plane = (uint32_t)value;
            return 0;
        }
    }
    return cluster_reject(d, NULL, err,
                          "SLURM_DISTRIBUTION is '%.64s'; expected block, cyclic or plane=N; use "
                          "srun --distribution=block, or --hosts with a host for each rank",
                          text);
}

static void set_order(const uint32_t *counts, uint32_t n_nodes, uint32_t plane, uint32_t *node_of)
{
    uint32_t task = 0;
    uint64_t done = 0; /* tasks that a node with enough tasks received in the earlier rounds */
    bool is_full = false;

    for (; !is_full; done += plane) {
        is_full = true;
        for (uint32_t i = 0; i < n_nodes; i++) {
            uint64_t left = counts[i] > done ? counts[i] - done : 0;

            is_full = is_full && left <= plane;
            for (uint64_t k = 0; k < left && k < plane; k++)
                node_of[task++] = i;
        }
    }
}

/* Reads a variable of srun; false: absent or not a number. */
static bool read_own(const struct cluster_draft *d, const char *name, uint64_t *out)
{
    const char *text = cluster_env(d, name);

    return text != NULL && text_u64(text, CLUSTER_MAX_SLURM, out);
}

static int check_own_place(const struct cluster_draft *d, uint64_t n_tasks, const uint32_t *node_of,
                           struct err *err)
{
    uint64_t task, node, local, before = 0;
    const char *distribution = cluster_env(d, "SLURM_DISTRIBUTION");

    if (!read_own(d, "SLURM_PROCID", &task) || !read_own(d, "SLURM_NODEID", &node) ||
        !read_own(d, "SLURM_LOCALID", &local) || task >= n_tasks)
        return 0;
    for (uint64_t i = 0; i < task; i++)
        before += node_of[i] == node_of[task];
    if (node_of[task] == node && before == local)
        return 0;
    return cluster_reject(d, NULL, err,
                          "task %" PRIu64 " runs on node %" PRIu64 " as its task %" PRIu64
                          ", but by the distribution '%.64s' it is task %" PRIu64 " of node %" PRIu32
                          "; use srun --distribution=block, or --hosts with a host for each rank",
                          task, node, local, distribution != NULL ? distribution : "block", before,
                          node_of[task]);
}

int cluster_slurm_order(const struct cluster_draft *d, const uint32_t *counts, uint32_t n_nodes,
                        uint32_t *node_of, struct err *err)
{
    uint64_t n_tasks = 0;
    uint32_t plane;
    int rc = read_plane(d, &plane, err);

    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < n_nodes; i++)
        n_tasks += counts[i];
    set_order(counts, n_nodes, plane, node_of);
    return check_own_place(d, n_tasks, node_of, err);
}
