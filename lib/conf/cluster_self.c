/* cluster_self.c - determines which of the listed tasks this process is. The first source that
 * exists is used:
 *
 *   --task TYPE:INDEX
 *   task.type and task.index
 *   task.type and a launcher    the index counts the tasks of that type
 *   a launcher or a host name   the index counts the training tasks: chief, then workers
 *   the only entry              of a cluster of one
 *  */
#include "conf/cluster_self.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/text.h"
#include "conf/cluster_draft.h"
#include "conf/cluster_launcher.h"

enum { DESCRIBE_BYTES = 160 };

static int parse_flag(struct cluster_draft *d, struct err *err)
{
    const char *flag = d->opts->task;
    const char *colon = strrchr(flag, ':');
    uint64_t index;
    char *name;

    if (colon == NULL || !text_u64(colon + 1, CLUSTER_MAX_INDEX, &index))
        return err_set(err, ERR_INPUT, "--task '%.64s': expected TYPE:INDEX, such as worker:0",
                       flag);
    name = arena_strndup(&d->c->mem, flag, (size_t)(colon - flag));
    if (name == NULL)
        return cluster_nomem(err);
    if (!cluster_type_parse(d, name, &d->type))
        return err_wrap(err, cluster_reject_type(d, NULL, name, err), "--task '%.64s'", flag);
    d->index = (uint32_t)index;
    d->self_at = NULL;
    d->c->index_source = "--task";
    return 0;
}

/* adds a note if the flag overrides another task in the text. */
static void note_override(struct cluster_draft *d)
{
    const struct cluster_text_task *w = &d->text_task;

    if (w->type == NULL || w->index_at == NULL)
        return;
    if (strcmp(w->type, cluster_type_name(d->type)) != 0 || w->index != d->index)
        cluster_note(d, "--task %s:%" PRIu32 " overrides task %.64s %" PRId64 " of %s",
                     cluster_type_name(d->type), d->index, w->type, w->index, d->label);
}

static int use_text_index(struct cluster_draft *d, struct err *err)
{
    const struct cluster_text_task *w = &d->text_task;
    char found[DESCRIBE_BYTES];

    if (w->index < 0 || w->index > CLUSTER_MAX_INDEX) {
        json_describe(d->doc, w->index_at, found, sizeof(found));
        return cluster_reject(d, w->index_at, err, "task index must be 0 to %d, found %s",
                              CLUSTER_MAX_INDEX, found);
    }
    d->index = (uint32_t)w->index;
    d->self_at = w->index_at;
    d->c->index_source = "task.index";
    return 0;
}

static int find_self_in_text(struct cluster_draft *d, struct err *err)
{
    const struct cluster_text_task *w = &d->text_task;
    char what[64];
    bool found = false;
    int rc;

    if (w->type_at == NULL)
        return cluster_reject(d, w->at, err,
                              "task has an index but no type; add \"type\": "
                              "\"worker\" (or chief, ps, evaluator)");
    if (w->type == NULL) {
        json_describe(d->doc, w->type_at, what, sizeof(what));
        return cluster_reject(d, w->type_at, err,
                              "task type must be chief, worker, ps or "
                              "evaluator, found %s",
                              what);
    }
    if (!cluster_type_parse(d, w->type, &d->type))
        return cluster_reject_type(d, w->type_at, w->type, err);
    if (w->index_at != NULL)
        return use_text_index(d, err);
    snprintf(what, sizeof(what), "%s tasks", cluster_type_name(d->type));
    d->self_at = w->type_at;
    rc = cluster_launcher_index(d, d->count[d->type], what, &found, &d->index, &d->c->index_source,
                                err);
    if (rc < 0 || found)
        return rc;
    return cluster_reject(d, w->at, err,
                          "task has a type but no index; add \"index\": 0, or start it with a "
                          "launcher that numbers its tasks");
}

/* Sets type and index to those of the n-th training task: the chief is first. */
static void set_self_by_rank(struct cluster_draft *d, uint32_t n)
{
    const struct cluster_entry *chief = cluster_first(d, CLUSTER_CHIEF);
    const struct cluster_entry *worker = cluster_first(d, CLUSTER_WORKER);
    const struct cluster_entry *e =
        n < d->count[CLUSTER_CHIEF] ? chief + n : worker + (n - d->count[CLUSTER_CHIEF]);

    d->type = e->task.type;
    d->index = e->task.index;
}

static int find_self_by_launcher(struct cluster_draft *d, struct err *err)
{
    uint32_t world = d->count[CLUSTER_CHIEF] + d->count[CLUSTER_WORKER];
    uint32_t n = 0;
    bool found = false;
    int rc;

    d->self_at = d->text_task.at;
    rc = cluster_launcher_index(d, world, "training tasks (chief, then workers)", &found, &n,
                                &d->c->index_source, err);
    if (rc < 0)
        return rc;
    if (found) {
        set_self_by_rank(d, n);
        cluster_note(d, "this is %s %" PRIu32 ": %s has the index %" PRIu32,
                     cluster_type_name(d->type), d->index, d->c->index_source, n);
        return 0;
    }
    if (d->entries.n == 1 && world == 1) {
        set_self_by_rank(d, 0);
        d->c->index_source = "the only entry";
        return 0;
    }
    return cluster_reject(
        d, d->text_task.at, err,
        "the cluster does not define which task this is: add \"task\": {\"type\": \"worker\", "
        "\"index\": 0}, or use --task worker:0, mpirun or srun");
}

int cluster_find_self(struct cluster_draft *d, struct err *err)
{
    int rc;

    if (d->opts->task != NULL) {
        rc = parse_flag(d, err);
        if (rc == 0)
            note_override(d);
        return rc;
    }
    if (d->text_task.type_at != NULL || d->text_task.index_at != NULL)
        return find_self_in_text(d, err);
    return find_self_by_launcher(d, err);
}

/* strict: without a cluster this task must be worker 0. tf: as TensorFlow, ignores the task. */
int cluster_check_local(struct cluster_draft *d, struct err *err)
{
    const char *remedy = "add \"cluster\" with all addresses, or leave \"task\" out to run alone";
    bool has_text = d->text_task.type_at != NULL || d->text_task.index_at != NULL;
    int rc;

    d->c->index_source = "none";
    if (d->opts->task == NULL && !has_text)
        return 0;
    if (!cluster_is_strict(d) && d->opts->task == NULL) {
        cluster_note(d, "the task of %s is ignored: there is no cluster", d->label);
        return 0;
    }
    rc = cluster_find_self(d, err);
    if (rc < 0)
        return rc;
    if (d->type == CLUSTER_WORKER && d->index == 0)
        return 0;
    if (!cluster_is_strict(d)) {
        cluster_note(d, "--task %s is ignored: there is no cluster", d->opts->task);
        return 0;
    }
    return cluster_reject(d, d->opts->task == NULL ? d->text_task.at : NULL, err,
                          "task %s %" PRIu32 " is named, but there is no cluster; %s",
                          cluster_type_name(d->type), d->index, remedy);
}
