/* cluster_slurm.c - reads the cluster of a Slurm job step from its environment.
 *
 *   SLURM_STEP_NODELIST        n[1-2],m5      the hosts, in order (hostlist, see sinfo(1))
 *   SLURM_STEP_TASKS_PER_NODE  3(x2),2        number of tasks on each host
 *   SLURM_STEP_NUM_TASKS       8              total number of tasks
 *
 * Task p (SLURM_PROCID) is worker p. The distribution of the step decides its host; the ports of a
 * host are 8888, 8889, ..., or those from --port on. */
#include "conf/cluster_slurm.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "conf/cluster_draft.h"
#include "conf/cluster_hosts.h"
#include "conf/cluster_slurm_order.h"

enum {
    MAX_NAME = 255,   /* bytes of a node's expanded name */
    MAX_BRACKETS = 4, /* pairs in one name: rack[1-2]n[1-16] has two */
    MAX_DIGITS = 9,   /* of a number in brackets */
};

/* State of the expansion of a host list. */
struct expansion {
    struct arena *mem;
    VEC(const char *) names;
    const char *list; /* for messages */
    struct err *err;
};

static int reject_list(const struct expansion *x, const char *what)
{
    return err_set(x->err, ERR_INPUT, "host list '%.200s': %s; expected a form like n[1-3,5],m7",
                   x->list, what);
}

static int add_name(struct expansion *x, const char *name, size_t n)
{
    char *copy;

    if (n == 0)
        return reject_list(x, "a name is empty");
    if (x->names.n >= CLUSTER_MAX_SLURM)
        return reject_list(x, "it expands to more than 65536 names");
    copy = arena_strndup(x->mem, name, n);
    if (copy == NULL || !VEC_PUSH(x->names, copy))
        return cluster_nomem(x->err);
    return 0;
}

/* Reads a number at *p into *value and advances *p. Returns the number of digits, at most
 * MAX_DIGITS. */
static int read_number(const char **p, uint32_t *value)
{
    int n = 0;

    *value = 0;
    for (; isdigit((unsigned char)**p) && n < MAX_DIGITS; n++)
        *value = *value * 10 + (uint32_t)(*(*p)++ - '0');
    return n;
}

/* Reads "3" or "001-016" at *p and advances *p. *width is the number of digits of the lower end, to
 * which the expanded numbers are padded with zeros. */
static int read_range(struct expansion *x, const char **p, uint32_t *low, uint32_t *high,
                      int *width)
{
    *width = read_number(p, low);
    if (*width == 0)
        return reject_list(x, "a number is missing in the brackets");
    *high = *low;
    if (**p != '-')
        return 0;
    (*p)++;
    if (read_number(p, high) == 0)
        return reject_list(x, "a range in brackets has no end");
    return *high < *low ? reject_list(x, "a range in brackets ends before it begins") : 0;
}

/* Expands one name. `name` holds the first n bytes of the result; `rest` to `end` is not expanded
 * yet. The depth of the recursion is the number of bracket pairs. */
static int expand(struct expansion *x, char name[MAX_NAME + 1], size_t n, const char *rest,
                  const char *end, int depth)
{
    const char *open = memchr(rest, '[', (size_t)(end - rest));
    size_t literal = (size_t)((open != NULL ? open : end) - rest);
    const char *close, *p;

    if (n + literal + MAX_DIGITS > MAX_NAME)
        return reject_list(x, "a name is too long");
    memcpy(name + n, rest, literal);
    n += literal;
    if (open == NULL)
        return add_name(x, name, n);
    close = memchr(open, ']', (size_t)(end - open));
    if (close == NULL)
        return reject_list(x, "a bracket is not closed");
    if (depth == MAX_BRACKETS)
        return reject_list(x, "a name has more than four pairs of brackets");
    for (p = open; *p != ']';) {
        uint32_t low = 0, high = 0;
        int width = 0, rc;

        p++; /* skip the bracket or the comma */
        rc = read_range(x, &p, &low, &high, &width);
        if (rc == 0 && *p != ',' && *p != ']')
            rc = reject_list(
                x,
                "the brackets contain something other than numbers below a billion, '-' and ','");
        for (uint32_t i = low; rc == 0 && i <= high; i++) {
            int digits = snprintf(name + n, MAX_DIGITS + 1, "%0*" PRIu32, width, i);

            rc = expand(x, name, n + (size_t)digits, close + 1, end, depth + 1);
        }
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Returns the end of the name at p: the next comma outside brackets, or the end of the list. */
static const char *name_end(const char *p)
{
    bool is_inside = false;

    for (; *p != '\0' && (is_inside || *p != ','); p++)
        is_inside = *p == '[' || (is_inside && *p != ']');
    return p;
}

int cluster_slurm_nodes(const char *list, struct arena *mem, const char ***names, uint32_t *n,
                        struct err *err)
{
    struct expansion x = { .mem = mem, .list = list, .err = err };
    char name[MAX_NAME + 1];
    const char *end = list;
    const char **copy = NULL;
    int rc = 0;

    for (const char *p = list; rc == 0; p = end + 1) {
        end = name_end(p);
        rc = expand(&x, name, 0, p, end, 0);
        if (*end == '\0')
            break;
    }
    if (rc == 0) {
        copy = arena_array(mem, x.names.n, sizeof(*copy));
        if (copy == NULL)
            rc = cluster_nomem(err);
    }
    if (rc == 0) {
        memcpy(copy, x.names.at, x.names.n * sizeof(*copy));
        *names = copy;
        *n = (uint32_t)x.names.n;
    }
    VEC_FINI(x.names);
    return rc;
}

/* Reads "3" or "3(x2)" at *p and advances *p. Returns false if it is invalid. */
static bool read_count(const char **p, uint32_t *count, uint32_t *times)
{
    *times = 1;
    if (read_number(p, count) == 0 || *count == 0)
        return false;
    if (strncmp(*p, "(x", 2) == 0) {
        *p += 2;
        if (read_number(p, times) == 0 || *times == 0 || *(*p)++ != ')')
            return false;
    }
    return **p == ',' || **p == '\0';
}

/* Returns the number of counts that `list` expands to, and writes them to `out` unless it is NULL.
 * Returns 0 if the list is invalid or has more than CLUSTER_MAX_SLURM counts. */
static uint32_t expand_counts(const char *list, uint32_t *out)
{
    uint32_t count, times, n = 0;

    for (const char *p = list;; p++) {
        if (!read_count(&p, &count, &times) || times > CLUSTER_MAX_SLURM - n)
            return 0;
        for (uint32_t i = 0; i < times && out != NULL; i++)
            out[n + i] = count;
        n += times;
        if (*p == '\0')
            return n;
    }
}

int cluster_slurm_counts(const char *list, struct arena *mem, uint32_t **counts, uint32_t *n,
                         struct err *err)
{
    uint32_t total = expand_counts(list, NULL);
    uint32_t *copy;

    if (total == 0)
        return err_set(err, ERR_INPUT,
                       "task counts '%.200s': expected a form like 3(x2),2, each at least 1, of "
                       "%d nodes at most",
                       list, CLUSTER_MAX_SLURM);
    copy = arena_array(mem, total, sizeof(*copy));
    if (copy == NULL)
        return cluster_nomem(err);
    *counts = copy;
    *n = expand_counts(list, copy);
    return 0;
}

static int require_variable(const struct cluster_draft *d, const char *name, const char **out,
                            struct err *err)
{
    *out = cluster_env(d, name);
    if (*out != NULL && (*out)[0] != '\0')
        return 0;
    return cluster_reject(d, NULL, err, "%s is not set; start the tasks with srun", name);
}

/* Checks that the sum of the counts equals the number of tasks that the launcher started. */
static int check_sum(const struct cluster_draft *d, uint64_t sum, struct err *err)
{
    static const char *const names[] = { "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS" };
    uint64_t stated;

    if (sum > CLUSTER_MAX_SLURM)
        return cluster_reject(d, NULL, err, "the step has %" PRIu64 " tasks; expected at most %d",
                              sum, CLUSTER_MAX_SLURM);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *text = cluster_env(d, names[i]);

        if (text == NULL || text[0] == '\0')
            continue;
        if (!text_u64(text, UINT64_MAX, &stated) || stated != sum)
            return cluster_reject(d, NULL, err,
                                  "%s is '%.32s', but SLURM_STEP_TASKS_PER_NODE adds "
                                  "up to %" PRIu64 " tasks; start all tasks with one srun",
                                  names[i], text, sum);
        return 0;
    }
    return 0;
}

/* Adds the tasks in the order of their ranks. */
static int add_tasks(struct cluster_draft *d, const char *const *nodes, const uint32_t *counts,
                     uint32_t n_nodes, uint32_t n_tasks, struct err *err)
{
    uint32_t *node_of = arena_array(&d->c->mem, n_tasks, sizeof(*node_of));
    uint32_t *used = arena_array(&d->c->mem, n_nodes, sizeof(*used)); /* ports of each node */
    int rc;

    if (node_of == NULL || used == NULL)
        return cluster_nomem(err);
    memset(used, 0, n_nodes * sizeof(*used));
    rc = cluster_slurm_order(d, counts, n_nodes, node_of, err);
    for (uint32_t i = 0; rc == 0 && i < n_tasks; i++) {
        const char *node = nodes[node_of[i]];

        rc = cluster_add_task_of_host(d, node, strlen(node), used[node_of[i]]++, i, err);
    }
    return rc;
}

int cluster_read_slurm(struct cluster_draft *d, struct err *err)
{
    const char *node_list = NULL, *count_list = NULL;
    const char **nodes;
    uint32_t *counts;
    uint32_t n_nodes, n_counts;
    uint64_t sum = 0;
    int rc;

    rc = require_variable(d, "SLURM_STEP_NODELIST", &node_list, err);
    if (rc == 0)
        rc = require_variable(d, "SLURM_STEP_TASKS_PER_NODE", &count_list, err);
    if (rc < 0)
        return rc;
    rc = cluster_slurm_nodes(node_list, &d->c->mem, &nodes, &n_nodes, err);
    if (rc < 0)
        return err_wrap(err, rc, "SLURM_STEP_NODELIST");
    rc = cluster_slurm_counts(count_list, &d->c->mem, &counts, &n_counts, err);
    if (rc < 0)
        return err_wrap(err, rc, "SLURM_STEP_TASKS_PER_NODE");
    if (n_nodes != n_counts)
        return cluster_reject(d, NULL, err,
                              "SLURM_STEP_NODELIST '%.200s' names %" PRIu32 " hosts, "
                              "but SLURM_STEP_TASKS_PER_NODE '%.200s' counts %" PRIu32,
                              node_list, n_nodes, count_list, n_counts);
    for (uint32_t i = 0; i < n_counts; i++)
        sum += counts[i];
    rc = check_sum(d, sum, err);
    d->has_cluster = true;
    d->has_job[CLUSTER_WORKER] = true;
    return rc < 0 ? rc : add_tasks(d, nodes, counts, n_nodes, (uint32_t)sum, err);
}
