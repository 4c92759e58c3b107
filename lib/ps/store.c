/* store.c - the rows of a server: shards, reading, the state of a shard. */
#include "ps/store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "base/prefetch.h"
#include "ps/store_priv.h"
#include "ps/wants.h"

/* Copies the tables and assigns offsets. */
static int place_tables(struct ps_store *s, const struct ps_table *tables, struct err *err)
{
    uint64_t limit = PTRDIFF_MAX / sizeof(float) / (PS_SHARDS * (OPTIM_MAX_SLOTS + 2)) / 2, sum = 0;

    for (uint32_t i = 0; i < s->n_tables; i++) {
        struct store_table *t = &s->tables[i];
        uint64_t n = ps_local_rows(tables[i].rows, 0, 0); /* no shard has more */

        CHECK(tables[i].width > 0 && tables[i].first_shard <= PS_BY_ID);
        CHECK((tables[i].first_shard == PS_BY_ID) ==
              (tables[i].rows == 0 && tables[i].rules.admit_after > 0));
        if (n > limit / tables[i].width)
            sum = limit;
        else
            sum += (n * tables[i].width + STORE_LINE_FLOATS - 1) / STORE_LINE_FLOATS *
                   STORE_LINE_FLOATS;
        if (sum >= limit)
            return err_set(err, ERR_NOMEM,
                           "table '%s': %" PRIu64 " rows of %" PRIu32
                           " floats exceed the addresses of a process",
                           tables[i].name, tables[i].rows, tables[i].width);
        t->is = tables[i];
        t->offset = s->part_floats;
        s->part_floats = sum;
        t->is.name = strdup(tables[i].name);
        if (t->is.name == NULL)
            return err_set(err, ERR_NOMEM, "parameter server: out of memory");
    }
    return 0;
}

/* Counts and names the parts of the state, and reserves addresses for them. */
static int reserve(struct ps_store *s, const struct optim_hyper *hyper, struct err *err)
{
    const struct optim_def *def = s->opts.optimizer;
    size_t page = (size_t)sysconf(_SC_PAGESIZE) / sizeof(float);
    uint64_t floats = 0;
    size_t places = (PS_SHARDS + s->opts.n_threads - 1) / s->opts.n_threads;
    void *at;

    for (uint32_t i = 0; i < s->n_tables; i++)
        floats += s->tables[i].is.rows * s->tables[i].is.width;
    s->part_names[s->n_parts++] = "weights";
    for (uint32_t k = 0; k < def->n_slots; k++)
        if (optim_uses(def, hyper, k)) {
            s->slot_parts[k] = s->n_parts;
            s->part_names[s->n_parts++] = def->slots[k].name;
        }
    if (s->opts.average > 0)
        s->part_names[s->n_parts++] = "average";
    for (uint32_t i = 0; i < s->opts.staleness; i++)
        s->part_names[s->n_parts + i] = ps_delayed_names[i];
    for (uint32_t i = 0; i < s->n_tables; i++)
        s->tables[i].skips_rows = store_skips_rows(s, &s->tables[i], hyper);
    s->wants_huge_pages = 2 * floats >= (uint64_t)PS_SHARDS * s->part_floats;
    s->place_floats = (s->n_parts * s->part_floats + page - 1) / page * page;
    s->arena_bytes = (places * s->place_floats + page) * sizeof(float); /* never 0 */
    at = mmap(NULL, s->arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return err_sys(err, errno, "parameter server: reserve %zu bytes of addresses",
                       s->arena_bytes);
    s->arena = at;
    s->state.w = s->arena;
    for (uint32_t k = 0; k < def->n_slots; k++)
        if (s->slot_parts[k] != 0)
            s->state.slots[k] = s->arena + s->slot_parts[k] * s->part_floats;
    if (s->opts.average > 0)
        s->state.average = s->arena + (s->n_parts - 1) * s->part_floats;
    return 0;
}

int ps_store_open(const struct ps_store_opts *opts, struct ps_store **out, struct err *err)
{
    struct ps_store *s;
    size_t whole = OPTIM_BLOCK;
    int rc;

    CHECK(opts->n_threads == 0 || opts->thread < opts->n_threads);
    CHECK(opts->staleness <= PS_STALENESS_MAX);
    if (opts->optimizer->measure != NULL)
        return err_set(err, ERR_UNSUPPORTED,
                       "parameter server: optimizer '%s' needs norms over whole tables, which are "
                       "distributed over servers; use another optimizer, or train without ps",
                       opts->optimizer->name);
    for (uint32_t i = 0; opts->staleness > 0 && i < opts->n_tables; i++)
        if (opts->tables[i].first_shard == PS_BY_ID)
            return err_set(err, ERR_UNSUPPORTED,
                           "parameter server: table '%s' is dynamic, of which older weights are not "
                           "kept; expected staleness 0",
                           opts->tables[i].name);
    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return err_set(err, ERR_NOMEM, "parameter server: out of memory");
    s->opts = *opts;
    s->opts.tables = NULL;
    s->opts.hyper = NULL;
    if (opts->n_threads == 0)
        s->opts.n_threads = 1, s->opts.thread = 0;
    s->n_tables = opts->n_tables;
    s->tables = calloc((size_t)opts->n_tables + 1, sizeof(*s->tables));
    for (uint32_t i = 0; i < opts->n_tables; i++)
        if (opts->tables[i].width > whole)
            whole = opts->tables[i].width;
    s->whole = calloc(whole, sizeof(*s->whole));
    s->logs = calloc((size_t)PS_SHARDS * opts->staleness + 1, sizeof(*s->logs));
    rc = s->tables == NULL || s->whole == NULL || s->logs == NULL
             ? err_set(err, ERR_NOMEM, "parameter server: out of memory")
             : place_tables(s, opts->tables, err);
    if (rc == 0)
        rc = reserve(s, opts->hyper, err);
    for (uint32_t i = 0; rc == 0 && i < s->n_tables; i++)
        if (s->tables[i].is.first_shard == PS_BY_ID)
            rc = store_dynamic_open(s, &s->tables[i], err);
    if (rc < 0) {
        ps_store_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void ps_store_close(struct ps_store *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; s->tables != NULL && i < s->n_tables; i++) {
        free((char *)s->tables[i].is.name);
        free(s->tables[i].pending.rows);
        free(s->tables[i].pending.values);
        store_dynamic_close(&s->tables[i]);
    }
    for (uint32_t shard = 0; s->logs != NULL && shard < PS_SHARDS; shard++)
        store_drop_logs(s, shard);
    if (s->arena != NULL)
        munmap(s->arena, s->arena_bytes);
    free(s->logs);
    free(s->tables);
    free(s->whole);
    free(s->nodes);
    free(s->sums);
    free(s->with_rows);
    free(s->order);
    free(s);
}

/* ---- shards ---- */

/* Fills the weights of a table's rows in the shard, block by block, and copies them to the
 * average. */
static int fill_table(struct ps_store *s, uint32_t table, uint32_t shard, struct err *err)
{
    const struct store_table *t = &s->tables[table];
    uint64_t n = ps_local_rows(t->is.rows, t->is.first_shard, shard);
    size_t base = store_base(s, t, shard);

    for (uint64_t local = 0; local < n; local += PS_BLOCK_ROWS) {
        uint64_t here = n - local < PS_BLOCK_ROWS ? n - local : PS_BLOCK_ROWS;
        int rc = s->opts.fill(s->opts.arg, table, ps_row_of(t->is.first_shard, shard, local), here,
                              s->arena + base + local * t->is.width, err);

        if (rc < 0)
            return err_wrap(err, rc, "parameter server: initial rows of table '%s'", t->is.name);
    }
    if (s->state.average != NULL && n > 0)
        memcpy(s->state.average + base, s->state.w + base, n * t->is.width * sizeof(float));
    return 0;
}

/* Bytes of a row in the logs, if each step changes all rows of the table. */
static uint64_t log_bytes_of_row(const struct ps_store *s, const struct store_table *t)
{
    uint64_t of_log = t->is.width * sizeof(float) + sizeof(struct store_log_row);

    return t->skips_rows ? 0 : s->opts.staleness * of_log;
}

static uint64_t bytes_of(const struct ps_store *s, uint32_t shard)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < s->n_tables; i++) {
        const struct store_table *t = &s->tables[i];

        bytes += ps_local_rows(t->is.rows, t->is.first_shard, shard) *
                 (s->n_parts * t->is.width * sizeof(float) + log_bytes_of_row(s, t));
    }
    return bytes;
}

uint64_t ps_store_shard_bytes(const struct ps_store *s, uint32_t shard)
{
    CHECK(shard < PS_SHARDS);
    return bytes_of(s, shard) + store_dynamic_bytes(s, shard);
}

uint64_t ps_store_memory(const struct ps_store *s, uint32_t n_shards, uint64_t bytes)
{
    uint64_t of_shard = s->place_floats * sizeof(float);

    if (!s->wants_huge_pages)
        return bytes;
    for (uint32_t i = 0; i < s->n_tables; i++)
        of_shard += ps_local_rows(s->tables[i].is.rows, 0, 0) * log_bytes_of_row(s, &s->tables[i]);
    return n_shards * of_shard + s->dynamic_bytes;
}

int ps_store_add_shard(struct ps_store *s, uint32_t shard, bool fill, struct err *err)
{
    size_t bytes = s->place_floats * sizeof(float);
    int rc = 0;

    CHECK(shard < PS_SHARDS && shard % s->opts.n_threads == s->opts.thread);
    CHECK(!store_holds(s, shard) && !s->is_pending);
    if (bytes > 0 && mprotect(store_place(s, shard), bytes, PROT_READ | PROT_WRITE) < 0)
        return err_sys(err, errno, "parameter server: memory for shard %" PRIu32, shard);
    if (s->wants_huge_pages) /* no effect where the system has none */
        (void)madvise(store_place(s, shard), bytes, MADV_HUGEPAGE);
    s->held[shard / 64] |= (uint64_t)1 << shard % 64;
    s->bytes += bytes_of(s, shard);
    store_dynamic_add(s, shard, fill);
    for (uint32_t i = 0; fill && rc == 0 && i < s->n_tables; i++)
        rc = fill_table(s, i, shard, err);
    if (rc < 0)
        ps_store_drop_shard(s, shard);
    return rc;
}

void ps_store_drop_shard(struct ps_store *s, uint32_t shard)
{
    size_t bytes = s->place_floats * sizeof(float);

    CHECK(shard < PS_SHARDS && !s->is_pending);
    if (!store_holds(s, shard))
        return;
    s->held[shard / 64] &= ~((uint64_t)1 << shard % 64);
    s->bytes -= bytes_of(s, shard);
    store_drop_logs(s, shard);
    store_dynamic_drop(s, shard);
    /* Replaces the pages by a fresh reservation, which also frees them. */
    CHECK(bytes == 0 ||
          mmap(store_place(s, shard), bytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED);
}

bool ps_store_has(const struct ps_store *s, uint32_t shard)
{
    return shard < PS_SHARDS && store_holds(s, shard);
}

uint64_t ps_store_bytes(const struct ps_store *s)
{
    return s->bytes + s->dynamic_bytes;
}

uint32_t ps_store_facts(const struct ps_store *s, struct ps_table_facts *out, uint32_t most)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_tables; i++) {
        const struct store_table *t = &s->tables[i];

        if (!store_is_dynamic(t))
            continue;
        if (n < most) {
            out[n] = (struct ps_table_facts){
                .rows = t->trained, .admitted = t->admitted, .expired = t->expired
            };
            snprintf(out[n].name, sizeof(out[n].name), "%s", t->is.name);
        }
        n++;
    }
    return n;
}

/* ---- reading ---- */

/* Older weights are searched in the logs of the shard. */
static int read_older(const struct ps_store *s, const struct store_table *t, uint32_t age,
                      const uint64_t *rows, uint64_t n, float *out, struct err *err)
{
    size_t width = t->is.width;

    for (uint64_t i = 0; i < n; i++) {
        uint32_t shard = ps_shard_of(t->is.first_shard, rows[i]);

        if (!store_has_row(s, t, rows[i]))
            return store_bad_row(t, rows[i], err);
        memcpy(out + i * width,
               store_older(s, shard, t->offset + (size_t)ps_local_of(rows[i]) * width, age),
               width * sizeof(*out));
    }
    return 0;
}

static int read_newest(const struct ps_store *s, const struct store_table *t, const uint64_t *rows,
                       uint64_t n, float *out, struct err *err)
{
    enum { AHEAD = PREFETCH_AHEAD };
    size_t width = t->is.width, at[AHEAD];

    for (uint64_t i = 0; i < n + AHEAD; i++) {
        if (i >= AHEAD)
            memcpy(out + (i - AHEAD) * width, s->arena + at[i % AHEAD], width * sizeof(*out));
        if (i >= n)
            continue;
        if (!store_has_row(s, t, rows[i]))
            return store_bad_row(t, rows[i], err);
        at[i % AHEAD] = store_at(s, t, rows[i]);
        prefetch_row(s->arena + at[i % AHEAD], width * sizeof(*out));
    }
    return 0;
}

const float *ps_store_in_place(const struct ps_store *s, uint32_t table, uint64_t row,
                               struct err *err)
{
    const struct store_table *t = &s->tables[table];

    CHECK(table < s->n_tables);
    if (store_has_row(s, t, row))
        return s->arena + store_at(s, t, row);
    (void)store_bad_row(t, row, err);
    return NULL;
}

int ps_store_read(const struct ps_store *s, uint32_t table, uint32_t age, const uint64_t *rows,
                  uint64_t n, float *out, struct err *err)
{
    if (table >= s->n_tables)
        return store_unknown_table(s, table, err);
    if (age > s->opts.staleness)
        return store_too_old(s, age, err);
    if (store_is_dynamic(&s->tables[table]))
        return store_dynamic_read_rows(s, table, rows, n, out, err);
    if (age > 0)
        return read_older(s, &s->tables[table], age, rows, n, out, err);
    return read_newest(s, &s->tables[table], rows, n, out, err);
}

int ps_store_read_part(const struct ps_store *s, uint32_t table, uint32_t part, uint64_t row,
                       float *out, struct err *err)
{
    if (table >= s->n_tables)
        return store_unknown_table(s, table, err);
    if (part >= ps_store_n_parts(s))
        return store_unknown_part(s, part, err);
    if (!store_has_row(s, &s->tables[table], row))
        return store_bad_row(&s->tables[table], row, err);
    if (!store_is_dynamic(&s->tables[table]))
        return ps_store_export(s, ps_shard_of(s->tables[table].is.first_shard, row), table, part,
                               ps_local_of(row), 1, out, err);
    store_dynamic_read(s, table, part, row, out);
    return 0;
}

/* ---- the state of a shard ---- */

const char *ps_store_table_name(const struct ps_store *s, uint32_t table)
{
    return s->tables[table].is.name;
}

bool ps_store_is_dense(const struct ps_store *s, uint32_t table)
{
    return s->tables[table].is.is_dense;
}

uint32_t ps_store_n_parts(const struct ps_store *s)
{
    return s->n_parts + s->opts.staleness;
}

const char *ps_store_part_name(const struct ps_store *s, uint32_t part)
{
    CHECK(part < ps_store_n_parts(s));
    return s->part_names[part];
}

/* Finds n rows of a table in a shard: *at floats from the start of a part. */
static int locate(const struct ps_store *s, uint32_t shard, uint32_t table, uint32_t part,
                  uint64_t first_local, uint64_t n, size_t *at, struct err *err)
{
    const struct store_table *t = &s->tables[table];
    uint64_t rows;

    if (table >= s->n_tables)
        return store_unknown_table(s, table, err);
    if (part >= ps_store_n_parts(s))
        return store_unknown_part(s, part, err);
    if (!ps_store_has(s, shard))
        return err_set(err, ERR_PEER,
                       "parameter server: shard %" PRIu32 " is not held by this server", shard);
    rows = ps_local_rows(t->is.rows, t->is.first_shard, shard);
    if (first_local > rows || n > rows - first_local)
        return err_set(err, ERR_PEER,
                       "parameter server: table '%s', shard %" PRIu32 ": %" PRIu64
                       " rows from local row %" PRIu64 " of %" PRIu64,
                       t->is.name, shard, n, first_local, rows);
    *at = t->offset + (size_t)first_local * t->is.width;
    return 0;
}

int ps_store_export(const struct ps_store *s, uint32_t shard, uint32_t table, uint32_t part,
                    uint64_t first_local, uint64_t n, float *out, struct err *err)
{
    size_t at, width = 0;
    int rc = locate(s, shard, table, part, first_local, n, &at, err);

    if (rc < 0 || n == 0)
        return rc;
    width = s->tables[table].is.width;
    if (part < s->n_parts)
        memcpy(out, store_place(s, shard) + part * s->part_floats + at,
               (size_t)n * width * sizeof(*out));
    for (uint64_t i = 0; part >= s->n_parts && i < n; i++)
        memcpy(out + i * width, store_older(s, shard, at + i * width, part - s->n_parts + 1),
               width * sizeof(*out));
    return 0;
}

int ps_store_import(struct ps_store *s, uint32_t shard, uint32_t table, uint32_t part,
                    uint64_t first_local, uint64_t n, const float *in, struct err *err)
{
    size_t at, width = 0;
    int rc = locate(s, shard, table, part, first_local, n, &at, err);

    if (rc < 0 || n == 0)
        return rc;
    width = s->tables[table].is.width;
    if (part >= s->n_parts)
        return store_import_older(s, shard, at, part - s->n_parts + 1, n, width, in, err);
    memcpy(store_place(s, shard) + part * s->part_floats + at, in, (size_t)n * width * sizeof(*in));
    return 0;
}

int ps_store_import_initial(struct ps_store *s, uint32_t shard, uint32_t table,
                            uint64_t first_local, uint64_t n, const float *in, struct err *err)
{
    int rc = ps_store_import(s, shard, table, 0, first_local, n, in, err);

    if (rc == 0 && s->state.average != NULL)
        rc = ps_store_import(s, shard, table, s->n_parts - 1, first_local, n, in, err);
    return rc;
}

/* The older weights of all rows, also of those that are not in a log: two stores may log different rows that a
 * step left unchanged. */
static uint32_t checksum_older(const struct ps_store *s, uint32_t shard, uint32_t sum)
{
    for (uint32_t age = 1; age <= s->opts.staleness; age++)
        for (uint32_t i = 0; i < s->n_tables; i++) {
            const struct store_table *t = &s->tables[i];
            uint64_t n = ps_local_rows(t->is.rows, t->is.first_shard, shard);

            for (uint64_t k = 0; k < n; k++)
                sum = crc32c(sum, store_older(s, shard, t->offset + (size_t)k * t->is.width, age),
                             t->is.width * sizeof(float));
        }
    return sum;
}

uint32_t ps_store_checksum(const struct ps_store *s, uint32_t shard)
{
    bool is_finite = true; /* not used */
    uint32_t sum;

    CHECK(ps_store_has(s, shard));
    sum = checksum_part(store_place(s, shard), s->n_parts * s->part_floats, 0, &is_finite);
    for (uint32_t i = 0; i < s->n_tables; i++)
        if (store_is_dynamic(&s->tables[i]))
            sum = checksum_add(sum, store_dynamic_checksum(s, i, shard));
    return s->opts.staleness > 0 ? checksum_older(s, shard, sum) : sum;
}

void ps_store_flip(struct ps_store *s)
{
    for (uint32_t shard = 0; shard < PS_SHARDS; shard++)
        for (uint32_t i = 0; store_holds(s, shard) && i < s->n_tables; i++) {
            const struct store_table *t = &s->tables[i];
            uint32_t bits;

            if (store_is_dynamic(t) || ps_local_rows(t->is.rows, t->is.first_shard, shard) == 0)
                continue;
            memcpy(&bits, store_place(s, shard) + t->offset, sizeof(bits));
            bits ^= 1;
            memcpy(store_place(s, shard) + t->offset, &bits, sizeof(bits));
            return;
        }
}
