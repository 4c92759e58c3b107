/* server_save.c - SAVE, SAVING: rows of a server to the files of a checkpoint; see server.h. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "ps/saver.h"
#include "ps/server_priv.h"

void server_save_stop(struct ps_server *s)
{
    ps_saver_stop(s->saver);
    s->saver = NULL;
}

/* Are all shards of the set complete here? */
static bool holds_all(const struct ps_server *s, const uint64_t *shards)
{
    for (uint32_t i = 0; i < PS_SHARDS; i++)
        if (ps_set_has(shards, i) && (!ps_store_has(s->store, i) || ps_set_has(s->copied, i)))
            return false;
    return true;
}

/* Accepts the hidden names of ckpt/ alone, so a message names no other folder of this host. */
static bool is_folder_name(const char *name)
{
    return strncmp(name, ".step-", 6) == 0 && strchr(name, '/') == NULL;
}

int server_save(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    struct ps_save_job job = { .store = s->store,
                                     .n_tables = s->n_tables,
                                     .rows = s->rows,
                                     .widths = s->widths,
                                     .data_at = m->places,
                                     .shards = m->shards };
    char *folder = NULL;
    int rc;

    if (!s->is_holding || s->saver != NULL || from != s->leader || m->step != s->version ||
        !holds_all(s, m->shards) || !is_folder_name(m->text))
        return server_unexpected(s, from, "SAVE", m->step, err);
    if (s->opts.directory != NULL && (folder = fs_join(s->opts.directory, m->text)) == NULL)
        return server_no_memory(err);
    job.folder = folder;
    rc = ps_saver_start(&job, &s->saver, err);
    free(folder);
    return rc;
}

/* Ranks whose PULL waits for the next version extend their limits. */
static int send_waits(struct ps_server *s, struct err *err)
{
    const struct ps_message m = { .kind = PS_WAIT, .step = s->version };
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < s->n_ranks; i++) {
        if (!s->ranks[i].waits)
            continue;
        ps_write_begin(&s->out, &m, 0);
        rc = server_send(s, i, err);
    }
    return rc;
}

static int send_saved(struct ps_server *s, const struct ps_saver_status *status, struct err *err)
{
    const struct ps_message m = { .kind = PS_SAVED,
                                  .step = s->version,
                                  .flag = status->state,
                                  .number = (uint32_t)-status->err.code,
                                  .first = status->progress };

    ps_write_begin(&s->out, &m, 0);
    ps_write_save(&s->out, status->sums, status->err.text);
    return server_send(s, s->leader, err);
}

int server_saving(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    struct ps_saver_status status;
    int rc;

    if (s->saver == NULL || from != s->leader || m->flag > 1 || m->number > 1)
        return server_unexpected(s, from, "SAVING", m->step, err);
    if (m->flag == 1) {
        server_save_stop(s);
        return 0;
    }
    ps_saver_status(s->saver, &status);
    if (status.state != PS_SAVED_SOME)
        server_save_stop(s);
    rc = fault_error("ps.saving", err);
    if (rc == 0 && m->number == 1)
        rc = send_waits(s, err);
    return rc == 0 ? send_saved(s, &status, err) : rc;
}
