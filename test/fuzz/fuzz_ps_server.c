/* fuzz_ps_server.c - a sequence of messages to one server. The input is a list of operations, of a
 * byte for the operation, a byte for the sender and bytes for the fields: most messages are well
 * formed, some are damaged, and some are any bytes. After an error a new generation begins, as in
 * the daemon.
 *
 * Checked: errors have a code and a text; the version changes only by SETUP, BEGIN and the COMMIT of
 * all ranks, and by one in a COMMIT or in the copied rows for which it waits; sent messages can be read, and are
 * not larger than what was asked for; rows are of the version, or at most PS_STALENESS_MAX steps older; the server
 * holds no more memory than its tables have. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "fuzz/driver.h"
#include "ckpt/shard_files.h"
#include "opts/graph.h"
#include "ps/message.h"
#include "ps/server.h"
#include "ps/store.h"

enum { TABLES = 4, DYNAMIC = 3, MESSAGE_MAX = 1 << 20, OPS_MAX = 400, ROWS_MAX = 70 };

static const uint32_t widths[TABLES] = { 3, 1, PS_DENSE_WIDTH, 2 };
static const struct ps_setup_table setup_tables[TABLES] = {
    { .rows = 150, .width = 3, .rate_factor = 1 },
    { .rows = 66000, .width = 1, .flags = PS_TABLE_LAZY, .rate_factor = 0.5 },
    { .rows = 130, .width = PS_DENSE_WIDTH, .flags = PS_TABLE_DENSE, .rate_factor = 1, .weight_decay = 0.5 },
    { .rows = 0, .width = 2, .rate_factor = 1, .fill = TABLE_UNIFORM, .scale = 1, .admit_after = 2,
      .sweep_steps = 2, .expire_steps = 3, .max_rows = PS_SHARDS },
};
static const char *const names[TABLES] = { "a", "b", "c", "d" };
/* With rows of table 0, table 1 with two blocks, table 2, and of table 1 alone. */
static const uint32_t shards[] = { 0, 1, 389, 390, 778, 5, 1023 };

enum op {
    OP_SETUP, OP_QUERY, OP_BEGIN, OP_FOLLOW, OP_COPY, OP_FILL, OP_PULL, OP_PUSH,
    OP_COMMIT, OP_END, OP_GENERATION, OP_RAW, OP_DAMAGE, OP_STEP, OP_FETCH,
    OP_FILES, OP_POLL, OP_LANES, OP_IDS, OP_COUNT, OP_LIST, OPS
};

#define BEGIN_ALL "\x02\0\0\0\0\x7f\x7f\0"
#define FILL(parts_) "\x05" parts_ /* the number of parts - 1: adam has three */
const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("\0\0\0\x01\0" BEGIN_ALL FILL("\x02") "\x0d\0\x0d\0\x09\0\x09\x01"),
    FUZZ_SEED("\0\0\0" BEGIN_ALL FILL("\x02") "\x06\0\0\0\x02\x01\x02\x07\0\x01\0\0\x02\x01\x02\x07\x01\x01\0"
              "\x01\x01\x05\x08\0\x01\0\x07\0\x02\0\0\0\x08\x01\x01\0\x07\x01\x01\0\0\0"),
    FUZZ_SEED("\0\0\x01" BEGIN_ALL FILL("\x01") "\x0d\0\x0a\x01\x01\0\x01\0\x02\0\x01\x01\x03\0\x03\0\x02\x03"),
    FUZZ_SEED("\0\0\x0a" BEGIN_ALL "\x04\0\0\0\0\0\x40" FILL("\0") "\x07\0\x01\0\0\x01\x01\x0a\0\x01\0"),
    /* shards that are copied from the other server, one as its answer; then a FETCH of that server */
    FUZZ_SEED("\0\0\0" "\x02\0\0\0\x01\x7f\0\x7f" "\x03\0\x03\x7f" "\x04\x03\0\0\0\0\x40\x02"
              "\x0d\0\x0e\x03\0\0\0\0\0\x01\x09\0\x09\x01"),
    /* staleness 2: rows of two steps, then lanes read the rows before them, and of a wrong version */
    FUZZ_SEED("\0\0\x13" BEGIN_ALL FILL("\x03") "\x07\0\x01\0\0\x02\x01\x02\x07\x01\x01\0\x01\x01\x05\x08\0\x01\0"
              "\x11\0\0\0\0\x01\x01\0" "\x08\x01\x01\0" "\x07\0\x01\0\0\x02\x01\x02\x07\x01\x01\0\x01\x01\x05\x08\0\x01\0"
              "\x08\x01\x01\0" "\x11\0\xfe\0\0\x02\x01\x02\0" "\x11\x01\xfe\0\x01\x01\x05\0" "\x06\0\0\0\x01\x01\x02"
              "\x11\0\xff\0\0\x01\x01\0"),
    /* staleness 1, and shards that are copied from the other server with their older rows during a step */
    FUZZ_SEED("\0\0\x0a" "\x02\0\0\0\x01\x7f\0\x7f" "\x03\0\x03\x01" "\x04\x03\0\0\0\0\x40\0" "\x0d\0"
              "\x04\x03\0\0\x01\0\x40\x02" "\x11\0\xff\0\0\x01\x01\0" "\x0e\x03\0\0\0\0\0\x01"),
    /* SAVE when all shards are filled, LOAD before; the server has no directory of checkpoints */
    FUZZ_SEED("\0\0\0" BEGIN_ALL FILL("\x02") "\x13\0\0\x7f\x0f\0\0\0\x04\x7f\x10\0\x01\x10\0\0\x0d\0"),
    FUZZ_SEED("\0\0\0" BEGIN_ALL "\x0f\0\0\x01\x7f\x10\0\x01" FILL("\x02") "\x0d\0"),
    /* rows of the dynamic table: trained, fetched, and copied to another server */
    FUZZ_SEED("\0\0\0" BEGIN_ALL FILL("\x02") "\x07\0\x01\0\x03\x02\x01\x02\x07\x01\x01\0\x03\0"
              "\x08\0\x01\0\x08\x01\x01\0\x14\0\0\x03\x7f\x0e\x03\0\0\0\x03\0\x01\x06\0\0\x03\x02\x01\x02\0"),
    FUZZ_SEED("\0\0\0" "\x02\0\x05\0\0\x01\0\x01" "\x03\0\x03\x01" "\x12\x03\0\x03\x02\0\0\0\x04\0\x0d\0"),
    FUZZ_SEED("\x0c\0\x04\x01\0\0\0\x0b\0\x28tps\x03\x0d\0\0\0"),
};
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

struct input {
    const uint8_t *at;
    size_t left;
};

struct bench {
    struct ps_server *server;
    struct ps_writer w;
    uint32_t n_ranks, leader, damage_at, damage;
    uint64_t sent, asked; /* bytes of one operation */
    bool has_failed;
};

static uint8_t next(struct input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->at++;
}

static int receive(void *arg, uint32_t to, const struct iovec *parts, uint32_t n, struct err *err)
{
    static struct ps_section sections[PS_TABLES_MAX];
    struct bench *b = arg;
    struct ps_message m;
    size_t bytes = 0;
    uint8_t *copy;

    (void)err;
    for (uint32_t i = 0; i < n; i++)
        bytes += parts[i].iov_len;
    copy = malloc(bytes);
    CHECK(to < b->n_ranks + 2 && copy != NULL);
    bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(copy + bytes, parts[i].iov_base, parts[i].iov_len);
        bytes += parts[i].iov_len;
    }
    CHECK(ps_message_read(copy, bytes, widths, TABLES, sections, &m, NULL) == 0);
    if (m.kind == PS_ROWS)
        CHECK(m.step <= ps_server_version(b->server) &&
              ps_server_version(b->server) - m.step <= PS_STALENESS_MAX);
    b->sent += bytes;
    free(copy);
    return 0;
}

static void begin(struct bench *b, uint32_t n_ranks, uint32_t leader)
{
    b->n_ranks = n_ranks;
    b->leader = leader % n_ranks;
    CHECK(ps_server_begin(b->server, n_ranks, 2, n_ranks, b->leader, NULL) == 0);
}

static void give(struct bench *b, uint32_t from, const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n > 0 ? n : 1);
    uint64_t version = ps_server_version(b->server), after;
    struct ps_server_stats stats;
    struct err err = { 0 };
    uint32_t kind = 0;
    int rc;

    CHECK(copy != NULL);
    if (n > 0)
        memcpy(copy, data, n);
    if (b->damage != 0 && n > 0)
        copy[b->damage_at % n] ^= (uint8_t)b->damage;
    b->damage = 0;
    if (n >= 8)
        memcpy(&kind, copy + 4, sizeof(kind));
    b->sent = 0;
    rc = ps_server_handle(b->server, from, copy, n, &err);
    free(copy);
    after = ps_server_version(b->server);
    CHECK(after == version || kind == PS_SETUP || kind == PS_BEGIN ||
          ((kind == PS_COMMIT || kind == PS_COPY || kind == PS_COPY_IDS) && after == version + 1));
    ps_server_stats(b->server, &stats);
    CHECK(stats.n_shards <= PS_SHARDS && stats.bytes < 4 * 4 * (450 + 66000 + 16 + 16) +
                                                           PS_STALENESS_MAX * 5000 +
                                                           8 * MESSAGE_MAX);
    CHECK(b->sent <= 8 * MESSAGE_MAX);
    (void)ps_server_ended(b->server);
    if (rc == 0) {
        fuzz_accept();
        return;
    }
    CHECK(rc < 0 && err.code == rc && err.text[0] != '\0');
    b->has_failed = true;
}

static void give_written(struct bench *b, uint32_t from)
{
    CHECK(!b->w.failed);
    give(b, from, b->w.data, b->w.n);
}

static void write_set(struct bench *b, uint8_t bits)
{
    uint64_t set[PS_SET_WORDS] = { 0 };

    for (uint32_t i = 0; i < 7; i++)
        if (bits >> i & 1)
            ps_set_add(set, shards[i]);
    ps_write_set(&b->w, set);
}

static struct ps_message head(const struct bench *b, enum ps_kind kind, uint8_t more)
{
    return (struct ps_message){ .kind = kind,
                                .step = ps_server_version(b->server) + (int8_t)more,
                                .hyper = { .learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.9,
                                           .epsilon = 1e-8, .step = 1, .grad_scale = 1 } };
}

static void setup(struct bench *b, uint32_t from, uint8_t variant)
{
    static const enum optim_type types[] = { OPTIM_ADAM, OPTIM_SGD, OPTIM_LAMB };
    struct ps_message m = head(b, PS_SETUP, 0);
    uint32_t n = TABLES - variant / 3 % 3;

    m.flag = variant / 9 % (PS_STALENESS_MAX + 2); /* one too many */
    if (m.flag > 0 && variant < 128 && n > DYNAMIC)
        n = DYNAMIC; /* else the store refuses */
    ps_write_begin(&b->w, &m, 0);
    m.optimizer = types[variant % 3];
    m.average = variant % 2 ? 0.5 : 0;
    m.tables = setup_tables;
    m.n_tables = n;
    if (m.flag == 0 && variant % 5 == 0) {
        m.n_lanes = b->n_ranks;
        m.bound = 1 + variant % 3;
    }
    ps_write_setup(&b->w, &m, names);
    give_written(b, from);
}

static void copy_rows(struct bench *b, uint32_t from, uint8_t flags, uint64_t step, uint32_t shard,
                      uint32_t table, uint32_t part, uint64_t first, uint64_t n)
{
    float *values;

    CHECK(ps_write_copy(&b->w, step, shard, flags, table, part, first, n, widths[table], &values) ==
          0);
    for (uint64_t i = 0; i < n * widths[table]; i++)
        values[i] = (float)i;
    give_written(b, from);
}

/* All rows of all shards, for any optimizer: copies of parts that it does not have are refused. */
static void fill(struct bench *b, uint8_t n_parts)
{
    for (uint32_t i = 0; i < COUNT_OF(shards); i++)
        for (uint32_t table = 0; table < TABLES; table++) {
            uint64_t n = ps_local_rows(setup_tables[table].rows, ps_first_shard(table), shards[i]);

            for (uint32_t part = 0; n > 0 && part < n_parts && !b->has_failed; part++)
                copy_rows(b, b->leader, 0, ps_server_version(b->server), shards[i], table, part, 0,
                          n);
        }
}

/* Rows of the dynamic table that belong to the shard, ascending; some are damaged. */
static void copy_ids(struct bench *b, struct input *in, uint32_t from)
{
    struct ps_message m = head(b, PS_COPY_IDS, next(in) % 3);
    uint32_t n = next(in) % 8, n_parts = 1 + next(in) % 4, bad = next(in);
    uint64_t row = (uint64_t)next(in) << 56;
    struct ps_ids_room out;

    m.number = shards[next(in) % COUNT_OF(shards)];
    m.flag = next(in) % 8;
    m.first = next(in) % 2 == 0 ? 0 : row;
    CHECK(ps_write_copy_ids(&b->w, &m, DYNAMIC, n_parts, n, widths[DYNAMIC], &out) == 0);
    for (uint32_t i = 0; i < n; i++, row++) {
        while (ps_shard_of(PS_BY_ID, row) != m.number)
            row++;
        out.rows[i] = bad == 200 + i ? row ^ 1 : row;
        out.last_steps[i] = i;
        out.counts[i] = bad == 210 + i ? 0 : 1 + i;
    }
    for (uint32_t i = 0; i < n * n_parts * widths[DYNAMIC]; i++)
        out.values[i] = (float)i;
    give_written(b, from);
}

/* Rows of a table; each byte is a block. */
static void rows(struct bench *b, struct input *in, uint32_t from, const struct ps_message *m)
{
    uint32_t table = next(in) % TABLES, n = next(in) % ROWS_MAX;
    uint64_t row = 0;

    ps_write_begin(&b->w, m, 1);
    for (uint32_t i = 0; i < n; i++) {
        row += (uint64_t)next(in) * (table == 1 ? 64 : 1) + ((uint64_t)(table == DYNAMIC) << 55);
        *(uint64_t *)ps_write_room(&b->w, sizeof(row)) = row;
    }
    if (m->kind == PS_PUSH) {
        float *values = ps_write_room(&b->w, ps_padded(n * widths[table]));

        for (uint32_t i = 0; i < ps_padded(n * widths[table]) / sizeof(float); i++)
            values[i] = i < n * widths[table];
    }
    ps_write_section(&b->w, 0, table, m->kind == PS_PULL ? next(in) % 9 : 0, n);
    give_written(b, from);
}

static void step(struct bench *b)
{
    struct ps_message push = head(b, PS_PUSH, 1), commit = head(b, PS_COMMIT, 1);

    for (uint32_t r = 0; r < b->n_ranks && !b->has_failed; r++) {
        push.number = r;
        push.first = 1;
        ps_write_begin(&b->w, &push, 0);
        give_written(b, r);
    }
    for (uint32_t r = 0; r < b->n_ranks && !b->has_failed; r++) {
        ps_write_begin(&b->w, &commit, 0);
        give_written(b, r);
    }
}

static void raw(struct bench *b, struct input *in, uint32_t from)
{
    size_t n = next(in);

    n = n > in->left ? in->left : n;
    give(b, from, in->at, n);
    in->at += n;
    in->left -= n;
}

static void operate(struct bench *b, struct input *in)
{
    enum op op = next(in) % OPS;
    uint32_t from = next(in) % (b->n_ranks + 2);
    struct ps_message m;

    switch (op) {
    case OP_SETUP: setup(b, from, next(in)); break;
    case OP_QUERY:
        m = head(b, PS_QUERY, 0);
        ps_write_begin(&b->w, &m, 0);
        give_written(b, from);
        break;
    case OP_BEGIN:
        m = head(b, PS_BEGIN, next(in));
        m.flag = next(in) % 4;
        m.number = next(in) % 3;
        ps_write_begin(&b->w, &m, 0);
        write_set(b, next(in));
        write_set(b, next(in));
        write_set(b, next(in));
        give_written(b, from);
        break;
    case OP_FOLLOW:
        m = head(b, PS_FOLLOW, 0);
        m.number = next(in) % 6;
        ps_write_begin(&b->w, &m, 0);
        write_set(b, next(in));
        give_written(b, from);
        break;
    case OP_COPY: {
        uint32_t shard = shards[next(in) % COUNT_OF(shards)], table = next(in) % TABLES;
        uint32_t part = next(in) % 9, first = next(in), n = next(in), more = next(in);

        copy_rows(b, from, more % 4, ps_server_version(b->server) + more / 4 % 3, shard, table,
                  part, first, n);
        break;
    }
    case OP_FILL: fill(b, 1 + from % 4); break;
    case OP_PULL:
        m = head(b, PS_PULL, next(in));
        rows(b, in, from, &m);
        break;
    case OP_PUSH:
        m = head(b, PS_PUSH, next(in));
        m.number = from + next(in);
        m.first = 1;
        m.clip = 0.5f;
        rows(b, in, from, &m);
        break;
    case OP_COMMIT:
        m = head(b, PS_COMMIT, next(in));
        m.flag = next(in) % 3;
        ps_write_begin(&b->w, &m, 0);
        give_written(b, from);
        break;
    case OP_END:
        m = head(b, PS_END, 0);
        ps_write_begin(&b->w, &m, 0);
        give_written(b, from);
        break;
    case OP_GENERATION:
        ps_server_end(b->server);
        begin(b, 1 + from % 3, next(in));
        break;
    case OP_RAW: raw(b, in, from); break;
    case OP_DAMAGE:
        b->damage_at = (uint32_t)next(in) * (1 + from);
        b->damage = next(in);
        break;
    case OP_STEP: step(b); break;
    case OP_FETCH:
        m = head(b, PS_FETCH, next(in));
        m.number = shards[next(in) % COUNT_OF(shards)];
        m.first = next(in);
        ps_write_begin(&b->w, &m, 1);
        ps_write_section(&b->w, 0, next(in) % TABLES, next(in) % 4, 0);
        write_set(b, next(in));
        give_written(b, from);
        break;
    case OP_FILES: {
        static const uint64_t places[PS_PLACES] = { 400, 500 };
        static const struct ckpt_sizes sizes[TABLES];
        bool loads;

        m = head(b, PS_SAVE, next(in));
        loads = next(in) % 2 == 1;
        m.kind = loads ? PS_LOAD : PS_SAVE;
        m.number = loads ? 0 : next(in) % (TABLES + 1); /* the sizes are right if no row is trained */
        ps_write_begin(&b->w, &m, 0);
        write_set(b, next(in));
        ps_write_save(&b->w, places, loads ? "step-00000009" : ".step-00000009.tmp-1");
        if (!loads)
            ps_write_sizes(&b->w, sizes, m.number);
        give_written(b, from);
        break;
    }
    case OP_POLL:
        m = head(b, PS_POLL, 0);
        m.number = next(in) % 3;
        m.flag = m.number == 2;
        ps_write_begin(&b->w, &m, 0);
        give_written(b, from);
        break;
    case OP_LANES:
        m = head(b, PS_PULL, next(in));
        m.flag = 1 + next(in) % 2;
        rows(b, in, from, &m);
        break;
    case OP_IDS: copy_ids(b, in, from); break;
    case OP_LIST:
        m = head(b, PS_LIST, next(in));
        m.number = next(in) % (TABLES + 1);
        ps_write_begin(&b->w, &m, 0);
        write_set(b, next(in));
        give_written(b, from);
        break;
    case OP_COUNT:
        m = head(b, PS_COUNT, next(in));
        ps_write_begin(&b->w, &m, 0);
        write_set(b, next(in));
        give_written(b, from);
        break;
    case OPS: break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    struct bench b = { 0 };
    struct ps_server_opts o = { .n_threads = 1, .send = receive, .arg = &b };

    CHECK(ps_server_open(&o, &b.server, NULL) == 0);
    begin(&b, 2, 0);
    for (uint32_t i = 0; i < OPS_MAX && in.left > 0; i++) {
        operate(&b, &in);
        if (!b.has_failed)
            continue;
        b.has_failed = false;
        ps_server_end(b.server);
        begin(&b, b.n_ranks, b.leader);
    }
    ps_server_close(b.server);
    ps_writer_fini(&b.w);
    return 0;
}
