/* test_wire.c - messages of the node survive the wire; invalid messages are rejected. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "rdzv/wire.h"

enum { WORLD = 3, SELF = 1 };

static const struct rdzv_task tasks[WORLD] = { { "chief", 0, "a:1", "chief" },
                                               { "worker", 0, "b:1", "worker 0" },
                                               { "worker", 1, "c:1", "worker 1" } };
static const struct wire_cluster cluster = { tasks, WORLD };
static const struct member_ident ident = {
    "1.2", "j0b", "c1u", "chief:a", "cpu", "onednn", "2.19", "{\"train\": {}}",
    .protocol = "control 1, data 3",
    .code = "0123456789abcdef",
};

static void *packed(const ProtobufCMessage *m, size_t *n)
{
    uint8_t *bytes;

    *n = protobuf_c_message_get_packed_size(m);
    bytes = malloc(*n > 0 ? *n : 1);
    assert_non_null(bytes);
    protobuf_c_message_pack(m, bytes);
    return bytes;
}

static void assert_same(const struct member_msg *a, const struct member_msg *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_true(a->incarnation == b->incarnation && a->generation == b->generation);
    assert_true(a->held == b->held && a->rank == b->rank && a->code == b->code);
    assert_true(a->is_all == b->is_all && a->is_attaching == b->is_attaching);
    assert_int_equal(a->n_devices, b->n_devices);
    assert_int_equal(a->n_servers, b->n_servers);
    assert_string_equal(a->text, b->text);
    assert_true(a->progress.held == b->progress.held && a->progress.place == b->progress.place);
    assert_true(a->progress.phase_ms == b->progress.phase_ms);
    assert_true(a->progress.limit_ms == b->progress.limit_ms);
    assert_string_equal(a->progress.phase, b->progress.phase);
    assert_true(a->round == b->round && a->is_leader_silent == b->is_leader_silent);
    assert_int_equal(a->n_ranks, b->n_ranks);
    for (uint32_t i = 0; i < a->n_ranks; i++)
        assert_int_equal(a->ranks[i], b->ranks[i]);
    assert_int_equal(a->ident == NULL, b->ident == NULL);
    if (a->ident != NULL) {
        assert_string_equal(a->ident->version, b->ident->version);
        assert_string_equal(a->ident->job_digest, b->ident->job_digest);
        assert_string_equal(a->ident->cluster_hash, b->ident->cluster_hash);
        assert_string_equal(a->ident->cluster, b->ident->cluster);
        assert_string_equal(a->ident->devices, b->ident->devices);
        assert_string_equal(a->ident->kernels, b->ident->kernels);
        assert_string_equal(a->ident->nccl, b->ident->nccl);
        assert_string_equal(a->ident->protocol, b->ident->protocol);
        assert_string_equal(a->ident->code, b->ident->code);
        assert_string_equal(a->ident->job, b->ident->job);
    }
}

/* ---- round trip ---- */

static const uint32_t two_ranks[] = { 2, 0 };

static const struct rdzv_window sample_window = {
    .number = 3, .generation = 7, .steps = 60, .seconds = 0.5, .data = 0.125, .reduce = 0.25, .checkpoint = 0.5,
    .lanes = 4, .lane_seconds = 0.0625, .steal = 0.5, .others = 0.75, .storage = 0.125, .idle = -1, .copy_ms = 2.5,
    .late = 0.375, .slow = 0.03125, .delay = 0.0625, .n_waits = 2,
    .waits = { { 2, 0.25, 0, 0, 0 }, { 0, 0.125, 0.03125, 1e6, 1.5 } },
};
static const struct rdzv_advice sample_advice[] = {
    { 12, "reduce_share", 0.5, 0.25, "chief", "the chief is slow", "look at it" },
    { 13, "data_share", 0.75, 0.125, "no single task", "", "" },
};

static void assert_same_window(const Trainerd__V1__Window *m)
{
    const struct rdzv_window *a = &sample_window;
    struct rdzv_window b;

    assert_non_null(m);
    wire_read_window(&cluster, m, &b);
    assert_true(a->number == b.number && a->generation == b.generation && a->steps == b.steps &&
                a->seconds == b.seconds && a->data == b.data && a->reduce == b.reduce &&
                a->checkpoint == b.checkpoint);
    assert_true(a->lanes == b.lanes && a->lane_seconds == b.lane_seconds && a->steal == b.steal &&
                a->others == b.others && a->storage == b.storage && a->idle == b.idle &&
                a->copy_ms == b.copy_ms);
    assert_true(a->late == b.late && a->slow == b.slow && a->delay == b.delay &&
                a->n_waits == b.n_waits);
    for (uint32_t i = 0; i < a->n_waits; i++)
        assert_true(a->waits[i].rank == b.waits[i].rank && a->waits[i].late == b.waits[i].late &&
                    a->waits[i].slow == b.waits[i].slow && a->waits[i].rate == b.waits[i].rate &&
                    a->waits[i].losses == b.waits[i].losses);
}

static void assert_same_advice(const Trainerd__V1__Beat *m)
{
    assert_int_equal(m->n_advice, COUNT_OF(sample_advice));
    for (size_t i = 0; i < m->n_advice; i++) {
        const struct rdzv_advice *a = &sample_advice[i];
        struct rdzv_advice b;

        wire_read_advice(m->advice[i], &b);
        assert_true(a->time_us == b.time_us && a->value == b.value && a->limit == b.limit);
        assert_string_equal(a->kind, b.kind);
        assert_string_equal(a->culprit, b.culprit);
        assert_string_equal(a->text, b.text);
        assert_string_equal(a->remedy, b.remedy);
    }
}

static void member_message_survives_the_wire(void **state)
{
    static const struct member_msg said[] = {
        { .kind = MEMBER_MSG_JOIN,
          .incarnation = UINT64_MAX,
          .generation = 7,
          .is_attaching = true,
          .ident = &ident,
          .n_devices = 3,
          .ranks = two_ranks,
          .n_ranks = 2,
          .text = "",
          .progress.phase = "" },
        { .kind = MEMBER_MSG_JOIN,
          .incarnation = 1,
          .ident = &ident,
          .n_servers = 64,
          .text = "",
          .progress.phase = "" },
        { .kind = MEMBER_MSG_REACHED,
          .round = UINT64_MAX,
          .ranks = two_ranks,
          .n_ranks = 1,
          .text = "",
          .progress.phase = "" },
        { .kind = MEMBER_MSG_REACHED, .round = 1, .text = "", .progress.phase = "" },
        { .kind = MEMBER_MSG_READY, .generation = 6, .held = 41, .text = "", .progress.phase = "" },
        { .kind = MEMBER_MSG_BEAT,
          .generation = 7,
          .text = "",
          .progress = { 40, 123456, "reduce", 17, 900 } },
        { .kind = MEMBER_MSG_TROUBLE,
          .generation = 7,
          .rank = 2,
          .ranks = two_ranks,
          .n_ranks = 2,
          .text = "link broke",
          .progress.phase = "" },
        { .kind = MEMBER_MSG_TROUBLE,
          .generation = 7,
          .rank = MEMBER_NO_RANK,
          .is_leader_silent = true,
          .text = "",
          .progress.phase = "" },
        { .kind = MEMBER_MSG_COMPLETE,
          .generation = 7,
          .held = 100,
          .text = "",
          .progress.phase = "" },
        { .kind = MEMBER_MSG_LEAVE, .code = 138, .text = "disk", .progress.phase = "" },
        { .kind = MEMBER_MSG_LEAVE, .code = 143, .is_all = true, .text = "", .progress.phase = "" },
    };
    Trainerd__V1__StepTime step_time = TRAINERD__V1__STEP_TIME__INIT;
    const struct wire_sender sender = { .self = SELF,
                                        .to = 0,
                                        .call = 9,
                                        .data_address = "b:2",
                                        .host_key = "hk",
                                        .location = "z/r/h",
                                        .samples_per_second = 2.5,
                                        .step_time = &step_time,
                                        .trouble = "disk\nfull",
                                        .window = &sample_window };

    (void)state;
    step_time.seconds = 0.5;
    step_time.reduce = 0.25;
    for (size_t i = 0; i < COUNT_OF(said); i++) {
        struct wire out = { 0 }, in = { 0 };
        Trainerd__V1__MemberMessage *m;
        struct member_msg heard;
        struct err err = { 0 };
        size_t n;
        void *bytes = packed(wire_write_member(&out, &cluster, &said[i], &sender), &n);

        m = wire_unpack(&in, &trainerd__v1__member_message__descriptor, bytes, n);
        assert_non_null(m);
        if (wire_read_member(&in, &cluster, m, &heard, &err) < 0)
            fail_msg("%s", err.text);
        assert_same(&said[i], &heard);
        if (heard.kind == MEMBER_MSG_JOIN) {
            assert_int_equal(wire_rank(&cluster, m->join->task), SELF);
            assert_int_equal(wire_rank(&cluster, m->join->to), 0);
            assert_string_equal(m->join->data_address, "b:2");
            assert_string_equal(m->join->host_key, "hk");
            assert_string_equal(m->join->location, "z/r/h");
            assert_int_equal(m->join->call, 9);
        }
        if (heard.kind == MEMBER_MSG_BEAT) {
            assert_true(m->beat->samples_per_second == 2.5);
            assert_true(m->beat->step_time->seconds == 0.5 && m->beat->step_time->reduce == 0.25);
            assert_string_equal(m->beat->trouble, "disk full");
            assert_same_window(m->beat->window);
        }
        wire_fini(&in);
        wire_fini(&out);
        free(bytes);
    }
}

static void assert_same_view(const struct group_view *a, const struct group_view *b)
{
    assert_true(a->generation == b->generation && a->n_members == b->n_members);
    assert_true(a->newest_step == b->newest_step && a->newest_member == b->newest_member);
    assert_memory_equal(a->key, b->key, sizeof(a->key));
    assert_int_equal(a->n_pieces, b->n_pieces);
    assert_memory_equal(a->pieces, b->pieces, a->n_pieces * sizeof(*a->pieces));
    for (uint32_t i = 0; i < a->n_members; i++) {
        const struct group_member *m = &a->members[i], *o = &b->members[i];

        assert_true(m->rank == o->rank && m->incarnation == o->incarnation && m->held == o->held &&
                    m->storage_failures == o->storage_failures && m->n_devices == o->n_devices &&
                    m->n_servers == o->n_servers);
        assert_string_equal(m->name, cluster.tasks[m->rank].name);
        assert_string_equal(m->data_address, o->data_address);
        assert_string_equal(m->host_key, o->host_key);
        assert_string_equal(m->location, o->location);
    }
}

static void beat_with_a_wrong_window_or_advice_is_refused(void **state)
{
    Trainerd__V1__Window window = TRAINERD__V1__WINDOW__INIT;
    Trainerd__V1__TaskWait wait = TRAINERD__V1__TASK_WAIT__INIT, *waits[6];
    Trainerd__V1__Task task = TRAINERD__V1__TASK__INIT;
    Trainerd__V1__Advice advice = TRAINERD__V1__ADVICE__INIT, *list[17];
    Trainerd__V1__Beat beat = TRAINERD__V1__BEAT__INIT;
    Trainerd__V1__MemberMessage m = TRAINERD__V1__MEMBER_MESSAGE__INIT;
    struct member_msg heard;
    struct wire w = { 0 };
    struct err err;
    char longer[600];

    (void)state;
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    for (size_t i = 0; i < COUNT_OF(waits); i++)
        waits[i] = &wait;
    for (size_t i = 0; i < COUNT_OF(list); i++)
        list[i] = &advice;
    wire_fill_task(&cluster, 0, &task);
    m.message_case = TRAINERD__V1__MEMBER_MESSAGE__MESSAGE_BEAT;
    m.beat = &beat;
    beat.window = &window;
    beat.advice = list;
    beat.n_advice = 16;
    window.number = window.steps = 1;
    window.waits = waits;
    window.n_waits = 5;
    wait.task = &task;
    assert_int_equal(wire_read_member(&w, &cluster, &m, &heard, &err), 0);
#define REFUSED(field_, value_, was_, text_)                                                       \
    do {                                                                                           \
        field_ = value_;                                                                           \
        assert_int_equal(wire_read_member(&w, &cluster, &m, &heard, &err), ERR_INPUT);             \
        assert_non_null(strstr(err.text, text_));                                                  \
        field_ = was_;                                                                             \
    } while (0)
    REFUSED(window.number, 0, 1, "window: number 0");
    REFUSED(window.steps, 0, 1, "steps 0");
    REFUSED(window.n_waits, 6, 5, "window: 6 waits, expected at most 5");
    REFUSED(window.reduce, (double)NAN, 0, "window: reduce: nan, expected");
    REFUSED(window.steal, 1.5, 0, "window: steal: 1.5, expected a finite number from 0 to 1");
    REFUSED(window.idle, -2, 0, "window: idle: -2, expected a finite number from -1 to 1");
    REFUSED(window.delay, -1, 0, "window: delay: -1");
    REFUSED(wait.late, -1, 0, "window: wait 0: late: -1");
    REFUSED(wait.losses, -1, 0, "window: wait 0: losses: -1");
    REFUSED(wait.rate, (double)INFINITY, 0, "window: wait 0: rate: inf");
    REFUSED(wait.task, NULL, &task, "window: wait 0: task: expected a task of this cluster");
    REFUSED(task.index, 77, 0, "window: wait 0: task: expected a task of this cluster");
    REFUSED(beat.n_advice, 17, 16, "advice: 17 sentences, expected at most 16");
    REFUSED(advice.value, -1, 0, "advice 0: value: -1");
    REFUSED(advice.text, longer, "", "advice 0: text");
    REFUSED(advice.kind, "a\nb", "", "advice 0: kind");
#undef REFUSED
    assert_int_equal(wire_read_member(&w, &cluster, &m, &heard, &err), 0);
    wire_fini(&w);
}

static void beat_with_a_wrong_figure_is_refused(void **state)
{
    Trainerd__V1__StepTime time = TRAINERD__V1__STEP_TIME__INIT;
    Trainerd__V1__Beat beat = TRAINERD__V1__BEAT__INIT;
    Trainerd__V1__MemberMessage m = TRAINERD__V1__MEMBER_MESSAGE__INIT;
    const struct {
        double *figure, value;
        const char *text;
    } rows[] = { { &beat.samples_per_second, -1, "samples_per_second: -1, expected a finite number" },
                 { &beat.samples_per_second, (double)INFINITY, "samples_per_second: inf, expected" },
                 { &time.seconds, (double)NAN, "step_time.seconds: nan, expected" },
                 { &time.data, 1.5, "step_time.data: 1.5, expected a finite number from 0 to 1" },
                 { &time.checkpoint, -0.1, "step_time.checkpoint: -0.1, expected" } };
    struct member_msg heard;
    struct wire w = { 0 };
    struct err err;

    (void)state;
    beat.step_time = &time;
    m.message_case = TRAINERD__V1__MEMBER_MESSAGE__MESSAGE_BEAT;
    m.beat = &beat;
    assert_int_equal(wire_read_member(&w, &cluster, &m, &heard, &err), 0);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        *rows[i].figure = rows[i].value;
        assert_int_equal(wire_read_member(&w, &cluster, &m, &heard, &err), ERR_INPUT);
        assert_non_null(strstr(err.text, rows[i].text));
        *rows[i].figure = 0;
    }
    beat.trouble = "a\nb";
    assert_int_equal(wire_read_member(&w, &cluster, &m, &heard, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "trouble"));
    beat.trouble = (char *)"";
    beat.page = (char *)"a:1\nb";
    assert_int_equal(wire_read_member(&w, &cluster, &m, &heard, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "page"));
    wire_fini(&w);
}

static void leader_message_survives_the_wire(void **state)
{
    static const char *const addresses[] = { "c:9", "a:7" };
    static const struct group_member members[] = {
        { .rank = 0,
          .incarnation = 11,
          .n_devices = 1,
          .data_address = "a:9",
          .host_key = "x",
          .location = "rack/host",
          .held = 4,
          .storage_failures = 1 },
        { .rank = 2,
          .incarnation = 13,
          .n_devices = 2,
          .data_address = "c:9",
          .host_key = "y",
          .location = "",
          .held = 5 },
    };
    static const struct group_piece pieces[] = { { 2, 0, 8 }, { 0, 8, 4 }, { 1, 12, 4 } };
    static const struct group_view view = { .generation = 8,
                                            .pieces = pieces,
                                            .n_pieces = 3,
                                            .members = members,
                                            .n_members = 2,
                                            .key = { 1, 2, 3 },
                                            .newest_step = 5,
                                            .newest_member = 1 };
    static const struct member_msg said[] = {
        { .kind = MEMBER_MSG_WAIT, .text = "for worker 1", .progress.phase = "" },
        { .kind = MEMBER_MSG_VIEW,
          .view = &view,
          .text = "worker 0 was lost",
          .progress.phase = "" },
        { .kind = MEMBER_MSG_PAUSE, .generation = 8, .text = "", .progress.phase = "" },
        { .kind = MEMBER_MSG_OVER,
          .generation = 8,
          .rank = 2,
          .code = MEMBER_CONTINUE,
          .ranks = two_ranks,
          .n_ranks = 2,
          .text = "lost",
          .progress.phase = "" },
        { .kind = MEMBER_MSG_OVER,
          .rank = MEMBER_NO_RANK,
          .code = 0,
          .text = "complete",
          .progress.phase = "" },
        { .kind = MEMBER_MSG_REDIRECT, .rank = 2, .expired_ms = 77, .text = "", .progress.phase = "" },
        { .kind = MEMBER_MSG_REACH,
          .round = UINT64_MAX - 1,
          .ranks = two_ranks,
          .n_ranks = 2,
          .text = "",
          .progress.phase = "" },
        { .kind = MEMBER_MSG_REFUSE, .code = MEMBER_CONTINUE, .text = "later", .progress.phase = "" },
        { .kind = MEMBER_MSG_REFUSE, .code = 2, .text = "never", .progress.phase = "" },
        { .kind = MEMBER_MSG_BEAT, .text = "", .progress.phase = "" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(said); i++) {
        struct wire out = { 0 }, in = { 0 };
        Trainerd__V1__LeaderMessage *m;
        struct member_msg heard;
        struct err err = { 0 };
        size_t n;
        const struct wire_leader sender = { addresses, sample_advice, COUNT_OF(sample_advice),
                                            "host-a:9090" };
        void *bytes = packed(wire_write_leader(&out, &cluster, &said[i], &sender), &n);

        m = wire_unpack(&in, &trainerd__v1__leader_message__descriptor, bytes, n);
        assert_non_null(m);
        if (wire_read_leader(&in, &cluster, m, &heard, &err) < 0)
            fail_msg("%s", err.text);
        assert_same(&said[i], &heard);
        if (heard.kind == MEMBER_MSG_VIEW) {
            assert_same_view(heard.view, &view);
            assert_int_equal(heard.view->coordinator, 1); /* it has no storage failure */
        }
        if (heard.kind == MEMBER_MSG_REACH) {
            assert_string_equal(m->reach->peers[0]->data_address, "c:9");
            assert_string_equal(m->reach->peers[1]->data_address, "a:7");
        }
        if (heard.kind == MEMBER_MSG_BEAT) {
            assert_same_advice(m->beat);
            assert_string_equal(m->beat->page, "host-a:9090");
        }
        wire_fini(&in);
        wire_fini(&out);
        free(bytes);
    }
}

static void probe_status_survives_the_wire(void **state)
{
    static const struct member_status said[] = { { 5, 9, 0, true }, { 6, 0, MEMBER_NO_RANK, false } };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(said); i++) {
        struct wire w = { 0 };
        Trainerd__V1__Where where;
        struct member_status heard;
        uint32_t rank;

        wire_write_status(&w, &cluster, 2, &said[i], &where);
        assert_int_equal(wire_read_status(&cluster, &where, &rank, &heard, NULL), 0);
        assert_int_equal(rank, 2);
        assert_true(heard.incarnation == said[i].incarnation && heard.leader == said[i].leader);
        assert_true(heard.generation == said[i].generation && heard.has_view == said[i].has_view);
        wire_fini(&w);
    }
}

/* An error may quote any bytes (a path, a peer's text): the reader accepts it as one line without
 * control characters. */
static void text_of_any_bytes_arrives_clean(void **state)
{
    struct wire out = { 0 }, in = { 0 };
    char text[3000];
    struct member_msg heard, said = { .kind = MEMBER_MSG_LEAVE, .code = 2, .text = text };
    const struct wire_sender sender = { .data_address = "", .host_key = "" };
    Trainerd__V1__MemberMessage *m;
    size_t n;
    void *bytes;

    (void)state;
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    memcpy(text, "b\xff\n\x1b[2J", 7);
    bytes = packed(wire_write_member(&out, &cluster, &said, &sender), &n);
    m = wire_unpack(&in, &trainerd__v1__member_message__descriptor, bytes, n);
    assert_int_equal(wire_read_member(&in, &cluster, m, &heard, NULL), 0);
    assert_memory_equal(heard.text, "b?  [2Ja", 8);
    assert_int_equal(strlen(heard.text), MEMBER_TEXT_BYTES - 1);
    wire_fini(&in);
    wire_fini(&out);
    free(bytes);
}

/* ---- refused ---- */

struct view_fixture {
    Trainerd__V1__Task tasks[2];
    Trainerd__V1__Member members[2], *at[2];
    Trainerd__V1__Piece pieces[2], *pieces_at[GROUP_MAX_PIECES + 1];
    uint8_t key[GROUP_KEY_BYTES];
    Trainerd__V1__View view;
    Trainerd__V1__LeaderMessage m;
};

static void good_view(struct view_fixture *f)
{
    memset(f, 0, sizeof(*f));
    trainerd__v1__view__init(&f->view);
    for (uint32_t i = 0; i < 2; i++) {
        wire_fill_task(&cluster, 2 * i, &f->tasks[i]);
        trainerd__v1__member__init(&f->members[i]);
        f->members[i].task = &f->tasks[i];
        f->members[i].incarnation = 11 + i;
        f->members[i].n_devices = 1;
        f->members[i].step_held = 4 + i;
        f->at[i] = &f->members[i];
    }
    for (uint32_t i = 0; i < 2; i++) {
        trainerd__v1__piece__init(&f->pieces[i]);
        f->pieces[i].rank = 1 - i;
        f->pieces[i].first = 4 * i;
        f->pieces[i].lanes = 4;
    }
    for (uint32_t i = 0; i <= GROUP_MAX_PIECES; i++)
        f->pieces_at[i] = &f->pieces[i % 2];
    f->view.pieces = f->pieces_at;
    f->view.n_pieces = 2;
    f->view.generation = 3;
    f->view.members = f->at;
    f->view.n_members = 2;
    f->view.key.data = f->key;
    f->view.key.len = sizeof(f->key);
    f->view.newest_step = 5;
    f->view.newest_member = 1;
    f->view.reason = strcpy(malloc(8), "because");
    trainerd__v1__leader_message__init(&f->m);
    f->m.message_case = TRAINERD__V1__LEADER_MESSAGE__MESSAGE_VIEW;
    f->m.view = &f->view;
}

static void invalid_view_is_refused_with_the_field(void **state)
{
    static const struct {
        int what;
        const char *expected;
    } rows[] = {
        { 0, NULL },
        { 1, "View: generation: 0, expected 1 to 2^62" },
        { 2, "View: generation: 18446744073709551615, expected 1 to 2^62" },
        { 3, "View: key: 31 bytes, expected 32" },
        { 4, "View: 0 members, the newest is 1, in a cluster of 3" },
        { 5, "View: 2 members, the newest is 2, in a cluster of 3" },
        { 6, "View: members[1]: task: chief after worker 1, expected the order of ranks" },
        { 7, "View: members[1]: task: worker 1 after worker 1, expected the order of ranks" },
        { 8, "View: members[0]: incarnation: 0, expected a random number" },
        { 9, "View: members[1]: n_devices: 5000, expected 1 to 4096" },
        { 10, "View: newest_step 6, held by members[1]: that member holds 5, the newest held is 5" },
        { 11, "View: newest_step 5, held by members[0]: that member holds 4, the newest held is 5" },
        { 12, "View: members[0]: task: 'worker' 9 is no training task of this cluster" },
        { 13, "View: members[0]: task: missing" },
        { 14, "View: members[1]: step_held: 5, expected 0 of a parameter server" },
        { 15, "View: members[0]: n_servers: 1, expected a training task first" },
        { 16, "View: members[1]: n_servers: 2 with 1 devices, expected 0, or 1 to 64 without devices" },
        { 17, "View: members[1]: n_servers: 65 with 0 devices, expected 0, or 1 to 64 without devices" },
        { 18, "View: members[1]: n_devices: 0, expected 1 to 4096" },
        { 19, "View: newest_step 5, held by members[1]: that member holds 0, the newest held is 4" },
        { 20, "View: 1025 pieces, expected at most 1024" },
        { 21, "View: pieces[1]: 4 lanes from 4 on rank 2, expected 1 or more from 4 on one of 2 ranks" },
        { 22, "View: pieces[1]: 4 lanes from 5 on rank 0, expected 1 or more from 4 on one of 2 ranks" },
        { 23, "View: pieces[0]: 0 lanes from 0 on rank 1, expected 1 or more from 0 on one of 2 ranks" },
        { 24, "View: pieces[1]: 4294967292 lanes from 4 on rank 0, expected 1 or more from 4 on one of 2 "
              "ranks" },
        { 25, "View: members[1]: location: 'rack//host' has an empty name; expected a path such as zone/rack/host" },
    };
    struct view_fixture f;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct wire w = { 0 };
        struct member_msg heard;
        struct err err = { 0 };
        int rc;

        good_view(&f);
        switch (rows[i].what) {
        case 1:
            f.view.generation = 0;
            break;
        case 25:
            f.members[1].location = (char *)"rack//host";
            break;
        case 2:
            f.view.generation = UINT64_MAX;
            break;
        case 3:
            f.view.key.len = 31;
            break;
        case 4:
            f.view.n_members = 0;
            break;
        case 5:
            f.view.newest_member = 2;
            break;
        case 6:
            f.at[0] = &f.members[1];
            f.at[1] = &f.members[0];
            break;
        case 7:
            f.at[0] = &f.members[1];
            break;
        case 8:
            f.members[0].incarnation = 0;
            break;
        case 9:
            f.members[1].n_devices = 5000;
            break;
        case 10:
            f.view.newest_step = 6;
            break;
        case 11:
            f.view.newest_member = 0;
            break;
        case 12:
            f.tasks[0].type = (char *)"worker";
            f.tasks[0].index = 9;
            break;
        case 13:
            f.members[0].task = NULL;
            break;
        case 14:
            f.members[1].n_devices = 0;
            f.members[1].n_servers = 2;
            break;
        case 15:
            f.members[0].n_devices = 0;
            f.members[0].n_servers = 1;
            f.members[0].step_held = 0;
            break;
        case 16:
            f.members[1].n_servers = 2;
            break;
        case 17:
            f.members[1].n_devices = 0;
            f.members[1].n_servers = 65;
            break;
        case 18:
            f.members[1].n_devices = 0;
            break;
        case 19:
            f.members[1].n_devices = 0;
            f.members[1].n_servers = 2;
            f.members[1].step_held = 0;
            break;
        case 20:
            f.view.n_pieces = GROUP_MAX_PIECES + 1;
            break;
        case 21:
            f.pieces[1].rank = 2;
            break;
        case 22:
            f.pieces[1].first = 5;
            break;
        case 23:
            f.pieces[0].lanes = 0;
            break;
        case 24:
            f.pieces[1].lanes = UINT32_MAX - 3;
            break;
        default:
            break;
        }
        rc = wire_read_leader(&w, &cluster, &f.m, &heard, &err);
        assert_int_equal(rc, rows[i].expected != NULL ? ERR_INPUT : 0);
        if (rows[i].expected != NULL)
            assert_string_equal(err.text, rows[i].expected);
        wire_fini(&w);
        free(f.view.reason);
    }
}

static void invalid_exit_code_is_refused(void **state)
{
    Trainerd__V1__Leave leave = TRAINERD__V1__LEAVE__INIT;
    Trainerd__V1__MemberMessage up = TRAINERD__V1__MEMBER_MESSAGE__INIT;
    Trainerd__V1__Over over = TRAINERD__V1__OVER__INIT;
    Trainerd__V1__LeaderMessage down = TRAINERD__V1__LEADER_MESSAGE__INIT;
    struct wire w = { 0 };
    struct member_msg heard;
    struct err err = { 0 };

    (void)state;
    up.message_case = TRAINERD__V1__MEMBER_MESSAGE__MESSAGE_LEAVE;
    up.leave = &leave;
    assert_int_equal(wire_read_member(&w, &cluster, &up, &heard, &err), ERR_INPUT);
    assert_string_equal(err.text, "Leave: code: 0, expected 2, 138 or 143");
    down.message_case = TRAINERD__V1__LEADER_MESSAGE__MESSAGE_OVER;
    down.over = &over;
    over.ends = true;
    over.code = 1;
    assert_int_equal(wire_read_leader(&w, &cluster, &down, &heard, &err), ERR_INPUT);
    assert_string_equal(err.text, "Over: code: 1, expected 0, 2, 138 or 143");
    over.ends = false; /* the code is then not read */
    assert_int_equal(wire_read_leader(&w, &cluster, &down, &heard, &err), 0);
    assert_int_equal(heard.code, MEMBER_CONTINUE);
    down.message_case = 4; /* of an older protocol */
    assert_int_equal(wire_read_leader(&w, &cluster, &down, &heard, &err), ERR_INPUT);
    assert_string_equal(err.text, "unknown kind of message");
    wire_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(member_message_survives_the_wire),
        cmocka_unit_test(beat_with_a_wrong_figure_is_refused),
        cmocka_unit_test(beat_with_a_wrong_window_or_advice_is_refused),
        cmocka_unit_test(leader_message_survives_the_wire),
        cmocka_unit_test(probe_status_survives_the_wire),
        cmocka_unit_test(text_of_any_bytes_arrives_clean),
        cmocka_unit_test(invalid_view_is_refused_with_the_field),
        cmocka_unit_test(invalid_exit_code_is_refused),
    };

    return cmocka_run_group_tests_name("rdzv/wire", tests, NULL, NULL);
}
