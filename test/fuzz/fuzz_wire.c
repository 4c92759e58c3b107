/* fuzz_wire.c - any bytes as a message of the Rendezvous service: the message is refused with a
 * text, or the result has the properties that wire.h guarantees. */
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/location.h"
#include "base/text.h"
#include "fuzz/driver.h"
#include "rdzv/wire.h"

enum { WORLD = 2 };

#define INC "\x11\x01\x02\x03\x04\x05\x06\x07\x08" /* fixed64 in field 2 */
#define TASK0 "\x0a\x11\x0a\x06worker\x10\x00\x1a\x05" "a:222" /* Task{worker, 0} in field 1 */
#define TASK1 "\x0a\x11\x0a\x06worker\x10\x01\x1a\x05" "b:222"
#define MEMBER0 TASK0 INC "\x18\x01\x22\x03" "a:1\x2a\x01h\x30\x05" /* 38 bytes */
#define MEMBER1 TASK1 INC "\x18\x01\x22\x03" "b:1\x2a\x01h\x30\x04"
#define KEY "0123456789abcdef0123456789abcdef"

/* The first byte selects the type of the message: of a member, of a leader, the request or the
 * reply of Who. */
const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("\x00\x0a\x61" TASK1 INC "\x1a\x03" "0.1\x22\x03" "job\x2a\x03" "clu\x32\x03" "a,b\x3a\x03"
              "cpu\x40\x01\x4a\x04onex\x52\x00\x58\x07\x62\x03" "a:1\x6a\x01h\x72\x11\x0a\x06worker\x10"
              "\x00\x1a\x05" "a:222\x78\x09\x80\x01\x01"),                              /* Join */
    FUZZ_SEED("\x00\x12\x04\x08\x07\x10\x03"),                                          /* Ready */
    FUZZ_SEED("\x00\x1a\x1a\x08\x01\x10\x64\x18\x09\x22\x05train\x28\x0a\x30\x64\x39\x00\x00\x00\x00"
              "\x00\x00\xf0\x3f"),                                                       /* Beat */
    FUZZ_SEED("\x00\x22\x1b\x08\x01\x12\x11\x0a\x06worker\x10\x01\x1a\x05" "b:222\x1a\x04" "gone"),
    FUZZ_SEED("\x00\x2a\x04\x08\x01\x10\x09"), /* Complete */
    FUZZ_SEED("\x00\x32\x0b\x08\x8f\x01\x10\x01\x1a\x04" "stop"),                        /* Leave */
    FUZZ_SEED("\x01\x0a\x06\x0a\x04wait"),                                              /* Wait */
    FUZZ_SEED("\x01\x12\x7c\x08\x01\x12\x28" MEMBER0 "\x12\x28" MEMBER1 "\x1a\x20" KEY
              "\x28\x05\x30\x00"),                                                       /* View */
    FUZZ_SEED("\x01\x1a\x20\x08\x01\x12\x11\x0a\x06worker\x10\x01\x1a\x05" "b:222\x1a\x04lost\x28\x01"
              "\x30\x8f\x01"),                                                           /* Over */
    FUZZ_SEED("\x01\x2a\x02\x08\x01"),                                                  /* Pause */
    FUZZ_SEED("\x01\x32\x13" TASK1), /* Redirect */
    FUZZ_SEED("\x01\x3a\x0a\x08\x01\x10\x02\x1a\x04" "away"), /* Refuse */
    FUZZ_SEED("\x01\x42\x00"),                                                          /* Beat */
    FUZZ_SEED("\x02\x0a\x33" TASK1 INC "\x18\x03\x22\x11\x0a\x06worker\x10\x00\x1a\x05" "a:222\x28\x01"
              "\x12\x03" "clu"),
    FUZZ_SEED("\x03\x0a\x33" TASK1 INC "\x18\x03\x22\x11\x0a\x06worker\x10\x00\x1a\x05" "a:222\x28\x01"),
};
const size_t n_fuzz_seeds = sizeof(fuzz_seeds) / sizeof(fuzz_seeds[0]);

static const struct rdzv_task tasks[WORLD] = { { "worker", 0, "a:222", "worker 0" },
                                               { "worker", 1, "b:222", "worker 1" } };
static const struct wire_cluster cluster = { tasks, WORLD };

static void check_fact(const char *s, size_t max)
{
    CHECK(strlen(s) <= max && text_is_utf8(s, strlen(s)));
    for (; *s != '\0'; s++)
        CHECK((unsigned char)*s >= ' ' && *s != 0x7f);
}

static void check_text(const struct member_msg *m)
{
    check_fact(m->text, MEMBER_TEXT_BYTES - 1);
    check_fact(m->progress.phase, WIRE_PHASE_BYTES - 1);
    CHECK(m->generation <= WIRE_NUMBER_MAX && m->held <= WIRE_NUMBER_MAX);
    CHECK(m->n_ranks <= MEMBER_REACH_MAX);
    for (uint32_t i = 0; i < m->n_ranks; i++)
        CHECK(m->ranks[i] < WORLD);
    CHECK(m->code == MEMBER_CONTINUE || m->code == 0 || m->code == 2 || m->code == 138 ||
          m->code == 143);
}

static void check_beat(const Trainerd__V1__Beat *m)
{
    struct rdzv_window window;
    struct rdzv_advice advice;

    if (m->window != NULL) {
        wire_read_window(&cluster, m->window, &window);
        CHECK(window.n_waits <= RDZV_WAITS_MAX && window.reduce >= 0 && window.reduce <= 1);
        for (uint32_t i = 0; i < window.n_waits; i++)
            CHECK(window.waits[i].rank < WORLD && window.waits[i].late >= 0);
    }
    CHECK(m->n_advice <= RDZV_ADVICE_MAX);
    for (size_t i = 0; i < m->n_advice; i++) {
        wire_read_advice(m->advice[i], &advice);
        check_fact(advice.kind, RDZV_KIND_BYTES - 1);
        check_fact(advice.culprit, RDZV_CULPRIT_BYTES - 1);
        check_fact(advice.text, RDZV_SENTENCE_BYTES - 1);
        check_fact(advice.remedy, RDZV_SENTENCE_BYTES - 1);
    }
}

static int check_member(struct wire *w, Trainerd__V1__MemberMessage *m, struct err *err)
{
    struct member_msg out;
    int rc = wire_read_member(w, &cluster, m, &out, err);

    if (rc < 0)
        return rc;
    check_text(&out);
    CHECK(out.kind <= MEMBER_MSG_LEAVE || out.kind == MEMBER_MSG_BEAT);
    if (out.kind == MEMBER_MSG_JOIN) {
        CHECK(out.n_devices <= WIRE_DEVICES_MAX && out.n_servers <= MEMBER_SERVERS_MAX);
        CHECK((out.n_devices > 0) != (out.n_servers > 0) && out.incarnation != 0);
        check_fact(out.ident->version, 64);
        check_fact(out.ident->cluster, WIRE_BYTES_MAX);
        check_fact(out.ident->kernels, 256);
        check_fact(out.ident->protocol, 128);
        check_fact(out.ident->code, 64);
        check_fact(m->join->data_address, 320);
        check_fact(m->join->location, LOCATION_BYTES);
        check_fact(m->join->to->type, 32);
    }
    if (out.kind == MEMBER_MSG_BEAT)
        check_beat(m->beat);
    if (out.kind == MEMBER_MSG_TROUBLE)
        CHECK(out.rank < WORLD || out.rank == MEMBER_NO_RANK);
    if (out.kind == MEMBER_MSG_LEAVE)
        CHECK(out.code > 0);
    return 0;
}

static void check_view(const struct group_view *v)
{
    uint64_t newest = 0;

    CHECK(v->generation > 0 && v->n_members > 0 && v->n_members <= WORLD);
    for (uint32_t i = 0; i < v->n_members; i++) {
        CHECK(v->members[i].rank < WORLD && v->members[i].incarnation != 0);
        CHECK(i == 0 || v->members[i].rank > v->members[i - 1].rank);
        CHECK(location_check("location", v->members[i].location, NULL) == 0);
        newest = v->members[i].held > newest ? v->members[i].held : newest;
    }
    CHECK(v->newest_step == newest && v->newest_member < v->n_members &&
          v->coordinator < v->n_members);
    CHECK(v->members[v->coordinator].n_servers == 0);
    CHECK(v->members[v->newest_member].held == newest || newest == 0);
}

static int check_leader(struct wire *w, Trainerd__V1__LeaderMessage *m, struct err *err)
{
    struct member_msg out;
    int rc = wire_read_leader(w, &cluster, m, &out, err);

    if (rc < 0)
        return rc;
    check_text(&out);
    if (out.kind == MEMBER_MSG_BEAT)
        check_beat(m->beat);
    if (out.kind == MEMBER_MSG_VIEW)
        check_view(out.view);
    else if (out.kind == MEMBER_MSG_OVER)
        CHECK(out.rank < WORLD || out.rank == MEMBER_NO_RANK);
    else if (out.kind == MEMBER_MSG_REDIRECT)
        CHECK(out.rank < WORLD);
    return 0;
}

static int check_where(const Trainerd__V1__Where *m, struct err *err)
{
    struct member_status out;
    uint32_t rank;
    int rc = wire_read_status(&cluster, m, &rank, &out, err);

    if (rc < 0)
        return rc;
    CHECK(rank < WORLD || rank == MEMBER_NO_RANK);
    CHECK(out.leader < WORLD || out.leader == MEMBER_NO_RANK);
    CHECK(out.incarnation != 0 && out.generation <= WIRE_NUMBER_MAX);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const ProtobufCMessageDescriptor *const types[] = {
        &trainerd__v1__member_message__descriptor,
        &trainerd__v1__leader_message__descriptor,
        &trainerd__v1__who_request__descriptor,
        &trainerd__v1__who_reply__descriptor,
    };
    struct wire w = { 0 };
    struct err err = { 0 };
    char text[64];
    uint32_t kind;
    void *m;
    int rc = 0;

    if (size == 0)
        return 0;
    kind = data[0] % 4;
    wire_text(text, sizeof(text), data + 1, size - 1);
    check_fact(text, sizeof(text) - 1);
    m = wire_unpack(&w, types[kind], data + 1, size - 1);
    CHECK(w.used <= WIRE_MEMORY_MAX);
    if (m != NULL) {
        if (kind == 0)
            rc = check_member(&w, m, &err);
        else if (kind == 1)
            rc = check_leader(&w, m, &err);
        else if (kind == 2)
            rc = check_where(((Trainerd__V1__WhoRequest *)m)->where, &err);
        else
            rc = check_where(((Trainerd__V1__WhoReply *)m)->where, &err);
        CHECK(rc == 0 || (rc == ERR_INPUT && err.text[0] != '\0'));
    }
    wire_fini(&w);
    return 0;
}
