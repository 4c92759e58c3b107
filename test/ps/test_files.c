/* test_files.c - checkpoints whose rows are written by the servers of a group (group.h): the bytes are those that
 * one process writes from whole tables. Servers that read them have the rows of that step. */
#include "ckpt/kit.h"

#include "base/fault.h"
#include "ckpt/ckpt_priv.h"
#include "ps/group.h"
#include "ps/files.h"

enum { STEPS = 3 };

/* ---- the checkpoint of one process ---- */

enum { INTEGERS = 6 }; /* tensors of integers of a dynamic table */

struct named {
    struct ckpt_tensor model[PLAIN_TABLES * 2], slots[PLAIN_TABLES * (PLAIN_PARTS + INTEGERS)];
    char names[PLAIN_TABLES * (PLAIN_PARTS + INTEGERS)][40];
    uint32_t n_model, n_slots, n_names;
};

/* As ps_store_part_name(). */
static const char *part_name(const struct plain *p, uint32_t part)
{
    const struct optim_def *def = optim_get(p->type);

    for (uint32_t s = 0, k = 0; s < def->n_slots; s++) {
        k += optim_uses(def, &p->hyper, s);
        if (k == part)
            return def->slots[s].name;
    }
    return "average";
}

static const char *name(struct named *n, const char *table, const char *part)
{
    char *out = n->names[n->n_names++];

    snprintf(out, sizeof(n->names[0]), "%s/%s", table, part);
    return out;
}

/* Adds the tensors of integers of a dynamic table. */
static void name_integers(const struct ps_table *of, uint32_t t, struct named *out)
{
    static const struct {
        const char *part;
        uint32_t group;
    } integers[INTEGERS] = { { "ids", 1 },           { "last_step", 1 },
                             { "count", 1 },         { "candidate_ids", 2 },
                             { "candidate_last_step", 2 }, { "candidate_count", 2 } };

    for (int i = 0; i < INTEGERS; i++) {
        struct ckpt_tensor x = { name(out, of->name, integers[i].part), TENSOR_I64, { 1, { 0 } },
                                 CKPT_ELSEWHERE, t + 1, integers[i].group };

        if (i == 0)
            out->model[out->n_model++] = x;
        else
            out->slots[out->n_slots++] = x;
    }
}

/* is_elsewhere: the state is empty. Else it is plain.history, and no table is dynamic. */
static void name_tensors(const struct plain *p, bool is_elsewhere, struct named *out)
{
    memset(out, 0, sizeof(*out));
    for (uint32_t t = 0; t < p->n_tables; t++) {
        const struct ps_table *of = &p->tables[t];

        if (of->rows == 0)
            name_integers(of, t, out);
        for (uint32_t k = 0; k < p->n_parts; k++) {
            size_t at = k * p->first_float[p->n_tables] + p->first_float[t];
            struct ckpt_tensor x = { of->name, TENSOR_F32, { 2, { (int64_t)of->rows, of->width } },
                                     is_elsewhere ? CKPT_ELSEWHERE : at * sizeof(float), t + 1,
                                     of->rows == 0 };

            if (k == 0) {
                out->model[out->n_model++] = x;
                continue;
            }
            x.name = name(out, of->name, part_name(p, k));
            out->slots[out->n_slots++] = x;
        }
    }
}

static struct ckpt_writer_opts writer_opts(const struct named *n, const char *folder, size_t bytes)
{
    return (struct ckpt_writer_opts){ .directory = folder, .model = n->model, .n_model = n->n_model,
                                      .slots = n->slots, .n_slots = n->n_slots,
                                      .state_bytes = bytes, .retry_ms = 1 };
}

static void save_plain(const struct plain *p, const char *folder)
{
    struct named n;
    struct ckpt_writer_opts o;
    struct ckpt_writer *w;
    struct ckpt_meta meta = kit_meta(STEPS);
    struct err err;

    name_tensors(p, false, &n);
    o = writer_opts(&n, folder, p->n_parts * p->first_float[p->n_tables] * sizeof(float));
    w = kit_open(&o);
    assert_int_equal(ckpt_write(w, &meta, p->history[STEPS], &err), 0);
    kit_flush(w);
    ckpt_writer_close(w);
}

/* ---- the checkpoint of a group ---- */

static const char *name_of(void *arg, uint32_t server)
{
    static char name[32];
    const struct group *g = arg;

    snprintf(name, sizeof(name), "ps %u", g->owner[server]);
    return name;
}

static int write_rows(void *arg, struct ckpt_row_files *files, struct err *err)
{
    struct group *g = arg;
    struct ps_port port = leader_port(g);
    struct ps_save_opts o = { .step = STEPS, .stall_ms = 60000, .files = files,
                                    .name = name_of, .arg = g };
    int rc;

    g->leader_reads = true;
    rc = ps_leader_find_readers(g->leads, &port, &g->route, &o.servers, err);
    if (rc < 0)
        rc = err_wrap(err, ERR_CANCELED, "parameter servers");
    else
        rc = ps_save(&port, &g->route, &o, err);
    g->leader_reads = false;
    return rc;
}

/* The files of dynamic tables have the sizes that the servers report. */
static int set_sizes(struct group *g, struct ckpt_writer *w, struct err *err)
{
    struct ps_port port = leader_port(g);
    struct ckpt_sizes sizes[PLAIN_TABLES];
    const uint32_t *servers;
    int rc;

    if (g->plain->tables != plain_dynamic)
        return 0;
    g->leader_reads = true;
    rc = ps_leader_find_readers(g->leads, &port, &g->route, &servers, err);
    if (rc == 0)
        rc = ps_count(&port, &g->route, STEPS, servers, g->plain->n_tables, sizes, err);
    g->leader_reads = false;
    return rc < 0 ? err_wrap(err, ERR_CANCELED, "parameter servers")
                  : ckpt_set_sizes(w, sizes, g->plain->n_tables, err);
}

static int save_group(struct group *g, const char *folder, struct err *err)
{
    struct named n;
    struct ckpt_writer_opts o;
    struct ckpt_writer *w;
    struct ckpt_meta meta = kit_meta(STEPS);
    void *staging;
    int rc;

    name_tensors(g->plain, true, &n);
    o = writer_opts(&n, folder, 0);
    o.write_rows = write_rows;
    o.arg = g;
    w = kit_open(&o);
    assert_int_equal(ckpt_begin(w, &staging, err), 0);
    rc = set_sizes(g, w, err);
    if (rc < 0) {
        ckpt_abandon(w);
        ckpt_writer_close(w);
        return rc;
    }
    ckpt_hand_over(w, &meta);
    rc = ckpt_wait_rows(w, 60000, err);
    if (rc == 0)
        rc = flush_for(w, 60000, err);
    ckpt_writer_close(w);
    return rc;
}

static struct group *begun(struct plain *plain, uint32_t n_ps, uint32_t replicas,
                           const char *folder)
{
    struct group *g = calloc(1, sizeof(*g));

    assert_non_null(g);
    g->plain = plain;
    g->replicas = replicas;
    g->random = plain_mix(n_ps, replicas) | 1;
    g->checkpoints = folder;
    g->trainers[0].lives = g->trainers[1].lives = true;
    for (uint32_t p = 0; p < n_ps; p++)
        group_start_ps(g, p);
    group_begin(g);
    return g;
}

/* A group that has trained all steps, and can still be asked. */
static struct group *trained(struct plain *plain, uint32_t n_ps, uint32_t replicas,
                             const char *folder)
{
    struct group *g = begun(plain, n_ps, replicas, folder);

    assert_int_equal(group_settle(g, true), 0);
    group_train(g);
    assert_false(g->is_broken);
    return g;
}

static void end(struct group *g)
{
    group_end(g);
    group_close(g);
    free(g);
}

static void expect_same_files(const char *a, const char *b)
{
    char *step = kit_path(a, STEPS, NULL);
    struct ckpt_manifest m;

    assert_int_equal(ckpt_manifest_read(step, &m, NULL), 0);
    for (uint32_t i = 0; i < m.n_files; i++) {
        char *x = kit_path(a, STEPS, m.files[i].name), *y = kit_path(b, STEPS, m.files[i].name);
        struct buf p = { 0 }, q = { 0 };

        assert_int_equal(fs_read(x, 1 << 24, &p, NULL), 0);
        assert_int_equal(fs_read(y, 1 << 24, &q, NULL), 0);
        if (p.len != q.len || memcmp(p.data, q.data, p.len) != 0)
            fail_msg("%s differs", m.files[i].name);
        buf_fini(&p);
        buf_fini(&q);
        free(x);
        free(y);
    }
    free(step);
}

static void files_of_any_number_of_servers_have_the_bytes_of_one_process(void **state)
{
    static const uint32_t groups[][2] = { { 1, 1 }, { 2, 2 }, { 3, 2 }, { 4, 1 } };
    struct plain plain;
    char *expected = kit_folder();

    (void)state;
    plain_open(&plain, OPTIM_ADAM, 4, 8, STEPS, 0.5, 0);
    save_plain(&plain, expected);
    for (size_t i = 0; i < sizeof(groups) / sizeof(*groups); i++) {
        char *folder = kit_folder(), *step = kit_path(folder, STEPS, NULL);
        struct group *g = trained(&plain, groups[i][0], groups[i][1], folder);
        struct ckpt_info info;
        struct err err = { .text = "" };

        if (save_group(g, folder, &err) < 0 || ckpt_verify(step, NULL, NULL, &info, &err) < 0)
            fail_msg("%u ps: %s", groups[i][0], err.text);
        expect_same_files(expected, folder);
        end(g);
        free(step);
        kit_remove(folder);
    }
    plain_close(&plain);
    kit_remove(expected);
}

static void optimizer_without_slots_has_no_shard_files_of_slots(void **state)
{
    struct plain plain;
    char *expected = kit_folder(), *folder = kit_folder();
    struct group *g;
    struct err err = { .text = "" };

    (void)state;
    plain_open(&plain, OPTIM_SGD, 3, 8, STEPS, 0, 0);
    save_plain(&plain, expected);
    g = trained(&plain, 3, 2, folder);
    if (save_group(g, folder, &err) < 0)
        fail_msg("%s", err.text);
    expect_same_files(expected, folder);
    end(g);
    plain_close(&plain);
    kit_remove(folder);
    kit_remove(expected);
}

static void server_cannot_write_it_is_named_and_the_next_save_succeeds(void **state)
{
    static const struct {
        const char *fault, *text;
    } cases[] = { { "ps.save@7", "write '" }, { "ps.save_sync@3", "sync '" },
                  { "thread.start@2", "start the thread that writes rows" } };
    struct plain plain;

    (void)state;
    plain_open(&plain, OPTIM_ADAM, 3, 8, STEPS, 0, 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char *folder = kit_folder();
        struct group *g = trained(&plain, 2, 2, folder);
        struct err err = { .text = "" };

        assert_int_equal(fault_arm(cases[i].fault, NULL), 0);
        assert_true(save_group(g, folder, &err) < 0);
        assert_int_equal(fault_arm(NULL, NULL), 0);
        assert_int_equal(strncmp(err.text, "ps ", 3), 0);
        assert_text(err.text, cases[i].text);
        assert_int_equal(kit_count(folder, "step-"), 0);
        if (save_group(g, folder, &err) < 0)
            fail_msg("%s", err.text);
        end(g);
        kit_remove(folder);
    }
    plain_close(&plain);
}

static void server_without_a_directory_is_named(void **state)
{
    char *folder = kit_folder();
    struct plain plain;
    struct group *g;
    struct err err = { .text = "" };

    (void)state;
    plain_open(&plain, OPTIM_SGD, 3, 8, STEPS, 0, 0);
    g = trained(&plain, 1, 1, NULL);
    assert_int_equal(save_group(g, folder, &err), ERR_NOENT);
    assert_text(err.text, "ps 0: the job file of this task has no /checkpoint/directory");
    end(g);
    plain_close(&plain);
    kit_remove(folder);
}

/* The connection to a server fails: the generation ends, and the save is no failure of the storage. */
static void server_dies_during_a_save_the_save_is_abandoned(void **state)
{
    struct plain plain;

    (void)state;
    plain_open(&plain, OPTIM_SGD, 3, 8, STEPS, 0, 0);
    for (uint32_t after = 0; after < 12; after++) {
        char *folder = kit_folder();
        struct group *g = trained(&plain, 2, 1, folder);
        struct err err = { .text = "" };
        int rc;

        g->n_kills = 1;
        g->kills[0] = (struct kill){ g->n_events + 1 + after, TRAINERS + 1 };
        rc = save_group(g, folder, &err);
        if (rc < 0) {
            assert_int_equal(rc, ERR_CANCELED);
            assert_int_equal(kit_count(folder, "step-"), 0);
        }
        assert_true(rc < 0 || after > 4); /* at least two messages to and from each server */
        end(g);
        kit_remove(folder);
    }
    plain_close(&plain);
}

/* ---- loading ---- */

static int count_polls(void *arg, struct err *err)
{
    (void)err;
    ((struct group *)arg)->n_waits++;
    return 0;
}

/* The servers of a new group read the checkpoint; the rest of the settlement is that of the group. */
static int settle_from(struct group *g, const char *path, struct ps_settled *out, struct err *err)
{
    struct ps_settlement s = { .step = STEPS, .folder = path, .stall_ms = 60000, .name = name_of,
                               .on_progress = count_polls, .arg = g };
    struct ps_port port = leader_port(g);

    g->trainers[0].done = g->trainers[1].done = STEPS;
    return ps_leader_settle(g->leads, &port, &g->route, &s, out, err);
}

static void save_whole(const struct plain *p, const char *folder)
{
    struct named n;
    struct ckpt_writer_opts o;
    struct ckpt_writer *w;
    struct ckpt_meta meta = kit_meta(STEPS);
    struct err err;

    name_tensors(p, false, &n);
    for (uint32_t i = 0; i < n.n_model; i++)
        n.model[i].table = 0;
    for (uint32_t i = 0; i < n.n_slots; i++)
        n.slots[i].table = 0;
    o = writer_opts(&n, folder, p->n_parts * p->first_float[p->n_tables] * sizeof(float));
    w = kit_open(&o);
    assert_int_equal(ckpt_write(w, &meta, p->history[STEPS], &err), 0);
    kit_flush(w);
    ckpt_writer_close(w);
}

static void servers_read_their_rows_from_both_layouts(void **state)
{
    static const uint32_t groups[][2] = { { 1, 1 }, { 2, 2 }, { 4, 1 }, { 4, 3 } };
    struct plain plain;

    (void)state;
    plain_open(&plain, OPTIM_ADAM, 4, 8, STEPS, 0.5, 0);
    for (uint32_t i = 0; i < 8; i++) {
        char *folder = kit_folder(), *step = kit_path(folder, STEPS, NULL);
        struct group *g = begun(&plain, groups[i % 4][0], groups[i % 4][1], folder);
        struct ps_settled settled = { 0 };
        struct err err = { .text = "" };

        if (i < 4)
            save_plain(&plain, folder);
        else
            save_whole(&plain, folder);
        if (settle_from(g, step, &settled, &err) < 0)
            fail_msg("%u ps: %s", groups[i % 4][0], err.text);
        assert_int_equal(settled.n_filled, PS_SHARDS * g->route.n_holders);
        assert_true(g->n_waits > 0);
        check_holders(g);
        end(g);
        free(step);
        kit_remove(folder);
    }
    plain_close(&plain);
}

/* The rows, counts and steps are those of plain.h: check_holders() compares them. */
static void dynamic_tables_have_the_same_bytes_and_are_read_by_any_number_of_servers(void **state)
{
    static const uint32_t groups[][2] = { { 1, 1 }, { 2, 2 }, { 3, 2 }, { 4, 1 } };
    struct plain plain;
    char *folders[4];

    (void)state;
    plain_open_tables(&plain, plain_dynamic, OPTIM_ADAM, 3, 8, STEPS, 0.5, 0);
    for (uint32_t i = 0; i < 4; i++) {
        struct group *g = trained(&plain, groups[i][0], groups[i][1], folders[i] = kit_folder());
        struct err err = { .text = "" };

        if (save_group(g, folders[i], &err) < 0)
            fail_msg("%u ps: %s", groups[i][0], err.text);
        expect_same_files(folders[0], folders[i]);
        end(g);
    }
    for (uint32_t i = 0; i < 4; i++) {
        char *step = kit_path(folders[i], STEPS, NULL);
        struct group *g = begun(&plain, groups[3 - i][0], groups[3 - i][1], folders[i]);
        struct ps_settled settled = { 0 };
        struct ckpt_info info;
        struct err err = { .text = "" };

        if (ckpt_verify(step, NULL, NULL, &info, &err) < 0 ||
            settle_from(g, step, &settled, &err) < 0)
            fail_msg("%u ps: %s", groups[3 - i][0], err.text);
        check_holders(g);
        end(g);
        free(step);
    }
    for (uint32_t i = 0; i < 4; i++)
        kit_remove(folders[i]);
    plain_close(&plain);
}

static void server_dies_during_a_save_of_a_dynamic_table_the_save_is_abandoned(void **state)
{
    struct plain plain;

    (void)state;
    plain_open_tables(&plain, plain_dynamic, OPTIM_SGD, 3, 8, STEPS, 0, 0);
    for (uint32_t after = 0; after < 14; after++) {
        char *folder = kit_folder();
        struct group *g = trained(&plain, 2, 1, folder);
        struct err err = { .text = "" };
        int rc;

        g->n_kills = 1;
        g->kills[0] = (struct kill){ g->n_events + 1 + after, TRAINERS + 1 };
        rc = save_group(g, folder, &err);
        assert_true(rc == 0 || rc == ERR_CANCELED);
        assert_int_equal(kit_count(folder, "step-"), rc == 0);
        assert_true(rc < 0 || after > 8);
        end(g);
        kit_remove(folder);
    }
    plain_close(&plain);
}

static void flip_last_bit(const char *path)
{
    FILE *f = fopen(path, "r+b");
    int last;

    assert_non_null(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    last = fgetc(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    assert_int_equal(fputc(last ^ 1, f), last ^ 1);
    assert_int_equal(fclose(f), 0);
}

static void server_cannot_read_it_is_named_and_the_shards_are_incomplete(void **state)
{
    char *folder = kit_folder(), *step = kit_path(folder, STEPS, NULL);
    struct plain plain;

    (void)state;
    plain_open(&plain, OPTIM_ADAM, 3, 8, STEPS, 0, 0);
    save_plain(&plain, folder);
    for (int i = 0; i < 5; i++) {
        static const char *const texts[] = { "fault point ps.load", "checksum (XXH3-128)",
                                             "differ from those whose checksum was compared",
                                             "has 2", "No such file" };
        struct group *g = begun(&plain, 2, 1, folder);
        char *file = kit_path(folder, STEPS,
                              i == 1 ? "optimizer-00000-of-00016.safetensors"
                                     : "optimizer-00003-of-00016.safetensors");
        struct ps_settled settled = { 0 };
        struct ps_server_stats stats;
        uint32_t n_incomplete = 0;
        struct err err = { .text = "" };

        if (i == 0)
            assert_int_equal(fault_arm("ps.load@4", NULL), 0);
        if (i == 1)
            flip_last_bit(file);
        if (i == 2)
            assert_int_equal(fault_arm("ckpt.flip@4", NULL), 0);
        if (i == 3)
            assert_int_equal(truncate(file, 2), 0);
        if (i == 4)
            assert_int_equal(rename(step, file = (free(file), kit_path(folder, 9, NULL))), 0);
        g->servers_may_fail = true;
        assert_int_equal(settle_from(g, step, &settled, &err), ERR_PEER);
        assert_int_equal(fault_arm(NULL, NULL), 0);
        if (i == 1)
            flip_last_bit(file); /* good again */
        assert_int_equal(strncmp(err.text, "ps ", 3), 0);
        assert_text(g->failure.text, texts[i]); /* the server itself fails, with the same reason */
        assert_text(err.text, texts[i]);
        for (uint32_t s = 0; s < g->n_servers; s++) {
            ps_server_end(server_at(g, s));
            ps_server_stats(server_at(g, s), &stats);
            n_incomplete += stats.n_copied > 0; /* another one may have read all its rows before */
        }
        assert_true(n_incomplete > 0);
        end(g);
        free(file);
    }
    plain_close(&plain);
    free(step);
    kit_remove(folder);
}

/* ---- messages that are refused ---- */

static void expect_refused(struct group *g, uint32_t from, const struct ps_message *m,
                           const char *folder)
{
    static const struct ckpt_sizes sizes[1];
    uint64_t shards[PS_SET_WORDS] = { 0 }, places[PS_PLACES] = { 0 };
    struct ps_writer w = { 0 };

    ps_set_add(shards, 3);
    ps_write_begin(&w, m, 0);
    if (m->kind == PS_SAVE || m->kind == PS_LOAD) {
        ps_write_set(&w, shards);
        ps_write_save(&w, places, folder);
        if (m->kind == PS_SAVE)
            ps_write_sizes(&w, sizes, m->number);
    }
    if (m->kind == PS_COUNT)
        ps_write_set(&w, shards);
    assert_int_equal(ps_server_handle(server_at(g, 0), from, w.data, w.n, NULL), ERR_PEER);
    ps_writer_fini(&w);
}

static void save_that_is_not_expected_is_refused(void **state)
{
    const struct ps_message save = { .kind = PS_SAVE, .step = STEPS },
                            early = { .kind = PS_SAVE, .step = STEPS + 1 },
                            other = { .kind = PS_SAVE, .step = STEPS, .number = 1 },
                            count = { .kind = PS_COUNT, .step = STEPS + 2 },
                            load = { .kind = PS_LOAD, .step = STEPS },
                            poll = { .kind = PS_POLL, .step = STEPS },
                            saved = { .kind = PS_WAIT, .step = STEPS };
    char *folder = kit_folder();
    struct plain plain;
    struct group *g;

    (void)state;
    plain_open(&plain, OPTIM_SGD, 3, 8, STEPS, 0, 0);
    g = trained(&plain, 1, 1, folder); /* ps 0 has two threads: server 0 has even shards */
    expect_refused(g, g->leader, &save, ".step-00000003.tmp-1"); /* shard 3 */
    expect_refused(g, 1 - g->leader, &save, ".step-00000003.tmp-1");
    expect_refused(g, g->leader, &early, ".step-00000003.tmp-1");
    expect_refused(g, g->leader, &save, "../.step-00000003.tmp-1");
    expect_refused(g, g->leader, &save, ".step-/../x");
    expect_refused(g, g->leader, &save, "step-00000003");
    expect_refused(g, g->leader, &other, ".step-00000003.tmp-1"); /* sizes, but no dynamic table */
    expect_refused(g, g->leader, &count, "");
    expect_refused(g, 1 - g->leader, &count, "");
    expect_refused(g, g->leader, &load, "step-00000003"); /* the shards are filled */
    expect_refused(g, g->leader, &poll, "");
    expect_refused(g, g->leader, &saved, "");
    end(g);
    plain_close(&plain);
    kit_remove(folder);
}

/* A shard whose rows the coordinator has counted wrongly would be written over the next one. */
static void save_with_other_sizes_of_a_dynamic_table_is_refused(void **state)
{
    char *folder = kit_folder();
    struct plain plain;
    struct group *g;
    struct ckpt_sizes sizes[PLAIN_TABLES];
    const uint32_t *servers;
    struct ps_port port;
    struct err err;

    (void)state;
    plain_open_tables(&plain, plain_dynamic, OPTIM_SGD, 3, 8, STEPS, 0, 0);
    g = trained(&plain, 1, 1, folder);
    port = leader_port(g);
    g->leader_reads = true;
    assert_int_equal(ps_leader_find_readers(g->leads, &port, &g->route, &servers, &err), 0);
    assert_int_equal(ps_count(&port, &g->route, STEPS, servers, 3, sizes, &err), 0);
    g->leader_reads = false;
    for (int i = 0; i < 4; i++) { /* one trained row more, one candidate more, rows of a fixed table, too few tables */
        const struct ps_message m = { .kind = PS_SAVE, .step = STEPS, .number = i < 3 ? 3 : 2 };
        uint64_t shards[PS_SET_WORDS] = { 0 }, places[PS_PLACES] = { 0 };
        struct ckpt_sizes wrong[PLAIN_TABLES];
        struct ps_writer w = { 0 };

        memcpy(wrong, sizes, sizeof(wrong));
        ps_set_add(shards, 4); /* of server 0 */
        wrong[i == 2 ? 0 : 1].rows[i == 1][4] += i < 3;
        ps_write_begin(&w, &m, 0);
        ps_write_set(&w, shards);
        ps_write_save(&w, places, ".step-00000003.tmp-1");
        ps_write_sizes(&w, wrong, m.number);
        assert_int_equal(ps_server_handle(server_at(g, 0), g->leader, w.data, w.n, &err), ERR_PEER);
        assert_text(err.text, "SAVE");
        ps_writer_fini(&w);
    }
    end(g);
    plain_close(&plain);
    kit_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_of_any_number_of_servers_have_the_bytes_of_one_process),
        cmocka_unit_test(optimizer_without_slots_has_no_shard_files_of_slots),
        cmocka_unit_test(server_cannot_write_it_is_named_and_the_next_save_succeeds),
        cmocka_unit_test(server_without_a_directory_is_named),
        cmocka_unit_test(server_dies_during_a_save_the_save_is_abandoned),
        cmocka_unit_test(servers_read_their_rows_from_both_layouts),
        cmocka_unit_test(dynamic_tables_have_the_same_bytes_and_are_read_by_any_number_of_servers),
        cmocka_unit_test(server_dies_during_a_save_of_a_dynamic_table_the_save_is_abandoned),
        cmocka_unit_test(server_cannot_read_it_is_named_and_the_shards_are_incomplete),
        cmocka_unit_test(save_that_is_not_expected_is_refused),
        cmocka_unit_test(save_with_other_sizes_of_a_dynamic_table_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
