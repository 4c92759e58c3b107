/* server_files.c - SAVE, LOAD, POLL: rows of a server to and from the files of a checkpoint; see server.h. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/text.h"
#include "ps/background.h"
#include "ps/loader.h"
#include "ps/saver.h"
#include "ps/server_priv.h"
#include "ps/store_groups.h"

void server_stop_work(struct ps_server *s)
{
    ps_background_stop(s->work);
    s->work = NULL;
    if (s->save_waits)
        s->ranks[s->leader].waits = s->save_waits = false;
}

/* Accepts names of ckpt/ alone, so a message names no other folder of this host. Every host has its own path of
 * the directory. *out NULL: this task has none. The caller frees *out. */
static int folder_path(const struct ps_server *s, const char *name, const char *prefix, char **out,
                       struct err *err)
{
    *out = NULL;
    if (!text_starts(name, prefix) || strchr(name, '/') != NULL)
        return err_set(err, ERR_PEER, "'%.100s' is not the name of a checkpoint", name);
    if (s->opts.directory == NULL)
        return 0;
    *out = fs_join(s->opts.directory, name);
    return *out != NULL ? 0 : server_no_memory(err);
}

/* ---- requests that read rows: SAVE, COUNT, LIST ---- */

typedef int read_fn(struct ps_server *s, uint32_t from, const struct ps_message *m,
                    struct err *err);

/* Are all shards of the set complete here? */
static bool holds_all(const struct ps_server *s, const uint64_t *shards)
{
    for (uint32_t i = 0; i < PS_SHARDS; i++)
        if (ps_set_has(shards, i) && !server_has_shard(s, i))
            return false;
    return true;
}

/* The coordinator has committed a step that other ranks have not, or that waits for copied rows. */
static bool must_wait(const struct ps_server *s, uint32_t from, const struct ps_message *m)
{
    return s->is_holding && from == s->leader && s->work == NULL && m->step == s->version + 1 &&
           server_expects_version(s, &s->ranks[from]) && !s->ranks[from].waits;
}

/* Calls `read`, which reads the rows after step m->step and answers; keeps the message [n] until this server has
 * committed that step. `name`: of the message. */
static int read_committed(struct ps_server *s, uint32_t from, const struct ps_message *m,
                          const uint8_t *data, size_t n, const char *name, read_fn *read,
                          struct err *err)
{
    if (must_wait(s, from, m)) {
        s->ranks[from].waits = true;
        return server_keep(s, &s->ranks[from], &s->ranks[from].later, data, n, err);
    }
    if (!s->is_holding || s->work != NULL || from != s->leader || m->step != s->version ||
        !holds_all(s, m->shards))
        return server_unexpected(s, from, name, m->step, err);
    return read(s, from, m, err);
}

/* ---- SAVE ---- */

/* The numbers of rows with which the coordinator has made the files must be those of this server. */
static bool has_sizes(const struct ps_server *s, const struct ps_message *m)
{
    if (!ps_store_has_ids(s->store))
        return m->number == 0;
    if (m->number != s->n_tables)
        return false;
    for (uint32_t t = 0; t < s->n_tables; t++)
        for (uint32_t i = 0; i < PS_SHARDS; i++)
            for (int g = 0; g < CKPT_GROUPS; g++)
                if (!ps_store_is_dynamic(s->store, t)
                        ? m->sizes[t].rows[g][i] != 0
                        : ps_set_has(m->shards, i) &&
                              m->sizes[t].rows[g][i] != ps_store_group_rows(s->store, i, t, g))
                    return false;
    return true;
}

static int save(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    struct ps_save_job job = { .store = s->store,
                               .n_tables = s->n_tables,
                               .rows = s->rows,
                               .widths = s->widths,
                               .data_at = m->places,
                               .shards = m->shards,
                               .sizes = m->sizes,
                               .n_sizes = m->number };
    char *folder;
    int rc;

    if (!has_sizes(s, m))
        return server_unexpected(s, from, "SAVE", m->step, err);
    s->save_waits = false;
    rc = folder_path(s, m->text, ".step-", &folder, err);
    if (rc < 0)
        return rc;
    job.folder = folder;
    s->is_loading = false;
    s->work = ps_saver_start(&job);
    free(folder);
    return s->work != NULL ? 0 : server_no_memory(err);
}

int server_save(struct ps_server *s, uint32_t from, const struct ps_message *m, const uint8_t *data,
                size_t n, struct err *err)
{
    s->save_waits = s->save_waits || must_wait(s, from, m); /* POLL is then answered without work */
    return read_committed(s, from, m, data, n, "SAVE", save, err);
}

/* ---- COUNT ---- */

static int count(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    const struct ps_message reply = { .kind = PS_COUNTS, .step = m->step, .number = s->n_tables };
    struct ckpt_sizes *sizes;
    int rc = fault_error("ps.count", err);

    sizes = rc == 0 ? calloc((size_t)s->n_tables + 1, sizeof(*sizes)) : NULL;
    if (sizes == NULL)
        return rc < 0 ? rc : server_no_memory(err);
    for (uint32_t t = 0; t < s->n_tables; t++)
        for (uint32_t i = 0; ps_store_is_dynamic(s->store, t) && i < PS_SHARDS; i++)
            for (int g = 0; ps_set_has(m->shards, i) && g < CKPT_GROUPS; g++)
                sizes[t].rows[g][i] = ps_store_group_rows(s->store, i, t, g);
    ps_write_begin(&s->out, &reply, 0);
    ps_write_sizes(&s->out, sizes, s->n_tables);
    free(sizes);
    return server_send(s, from, err);
}

int server_count(struct ps_server *s, uint32_t from, const struct ps_message *m,
                 const uint8_t *data, size_t n, struct err *err)
{
    return read_committed(s, from, m, data, n, "COUNT", count, err);
}

/* ---- LIST ---- */

/* Adds the trained rows of a shard to the message. */
static int list_shard(struct ps_server *s, uint32_t shard, uint32_t table, uint64_t *n,
                      struct err *err)
{
    uint32_t rows = ps_store_group_rows(s->store, shard, table, CKPT_TRAINED), *order;
    int64_t *ids = ps_write_room(&s->out, rows * sizeof(*ids));
    int rc = ids != NULL ? ps_store_list_group(s->store, shard, table, CKPT_TRAINED, &order, err)
                         : server_no_memory(err);

    if (rc < 0)
        return rc;
    ps_store_export_column(s->store, shard, table, PS_COLUMN_IDS, order, rows, ids);
    free(order);
    for (uint32_t i = 0; i < rows; i++) {
        uint64_t row = ps_row_of_id(ids[i]);

        memcpy(&ids[i], &row, sizeof(row));
    }
    *n += rows;
    return 0;
}

static int list(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    const struct ps_message reply = { .kind = PS_LISTED, .step = m->step };
    uint64_t rows = 0;
    int rc;

    if (!ps_store_is_dynamic(s->store, m->number))
        return server_unexpected(s, from, "LIST", m->step, err);
    rc = fault_error("ps.list", err);
    ps_write_begin(&s->out, &reply, 1);
    for (uint32_t i = 0; rc == 0 && i < PS_SHARDS; i++)
        if (ps_set_has(m->shards, i))
            rc = list_shard(s, i, m->number, &rows, err);
    ps_write_section(&s->out, 0, m->number, 0, rows);
    return rc < 0 ? rc : server_send(s, from, err);
}

int server_list(struct ps_server *s, uint32_t from, const struct ps_message *m, const uint8_t *data,
                size_t n, struct err *err)
{
    return read_committed(s, from, m, data, n, "LIST", list, err);
}

/* ---- LOAD ---- */

static bool awaits_all(const struct ps_server *s, const uint64_t *shards)
{
    for (uint32_t i = 0; i < PS_SHARDS; i++)
        if (ps_set_has(shards, i) && !ps_set_has(s->copied, i))
            return false;
    return true;
}

int server_load(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    struct ps_load_job job = { .store = s->store,
                               .n_tables = s->n_tables,
                               .rows = s->rows,
                               .widths = s->widths,
                               .shards = m->shards };
    char *folder;
    int rc;

    if (s->store == NULL || s->work != NULL || from != s->leader || m->step != s->version ||
        !awaits_all(s, m->shards))
        return server_unexpected(s, from, "LOAD", m->step, err);
    rc = folder_path(s, m->text, "step-", &folder, err);
    if (rc < 0)
        return rc;
    job.folder = folder;
    s->is_loading = true;
    memcpy(s->loaded, m->shards, sizeof(s->loaded));
    s->work = ps_loader_start(&job);
    free(folder);
    return s->work != NULL ? 0 : server_no_memory(err);
}

/* All rows of the shards are there. */
static int end_load(struct ps_server *s, struct err *err)
{
    for (uint32_t i = 0; i < PS_SHARDS; i++)
        if (ps_set_has(s->loaded, i)) {
            ps_set_remove(s->copied, i);
            s->n_copied--;
        }
    return s->n_copied == 0 ? server_send_ready(s, err) : 0;
}

/* ---- POLL ---- */

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

static int send_done(struct ps_server *s, uint64_t step, const struct ps_background_status *status,
                     struct err *err)
{
    const struct ps_message m = { .kind = PS_DONE,
                                  .step = step,
                                  .flag = status->state,
                                  .number = (uint32_t)-status->err.code,
                                  .first = status->progress };
    uint64_t sums[PS_PLACES] = { 0 };

    if (status->state == PS_DONE_ALL && !s->is_loading)
        ps_saver_sums(s->work, sums);
    ps_write_begin(&s->out, &m, 0);
    ps_write_save(&s->out, sums, status->err.text);
    return server_send(s, s->leader, err);
}

int server_poll(struct ps_server *s, uint32_t from, const struct ps_message *m, struct err *err)
{
    struct ps_background_status status = { .state = PS_DONE_SOME };
    int rc;

    if ((s->work == NULL && !s->save_waits) || from != s->leader || m->flag > 1 || m->number > 1)
        return server_unexpected(s, from, "POLL", m->step, err);
    if (m->flag == 1) {
        server_stop_work(s);
        return 0;
    }
    if (!s->save_waits)
        ps_background_status(s->work, &status);
    rc = fault_error("ps.poll", err);
    if (rc == 0 && m->number == 1)
        rc = send_waits(s, err);
    if (rc == 0)
        rc = send_done(s, m->step, &status, err);
    if (rc < 0 || status.state == PS_DONE_SOME)
        return rc;
    server_stop_work(s);
    if (!s->is_loading)
        return 0;
    if (status.state == PS_DONE_ALL)
        return end_load(s, err);
    return err_set(err, status.err.code, "%s", status.err.text);
}
