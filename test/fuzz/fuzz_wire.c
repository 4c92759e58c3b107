/* fuzz_wire.c - whatever comes over the network as a message of Rendezvous: it is refused with a
 * story, or what comes out keeps the promises of wire.h. */
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "fuzz/driver.h"
#include "rdzv/wire.h"

enum { WORLD = 2 };

#define INC "0123456789abcdef"
#define TASK0 "\x0a\x11\x0a\x06worker\x10\x00\x1a\x05" "a:222" /* Task{worker, 0} */
#define TASK1 "\x0a\x11\x0a\x06worker\x10\x01\x1a\x05" "b:222"
#define MEMBER0 TASK0 "\x12\x10" INC "\x18\x01\x22\x03" "a:1\x2a\x01h\x30\x05"
#define MEMBER1 TASK1 "\x12\x10" INC "\x18\x01\x22\x03" "b:1\x2a\x01h\x30\x05"
#define KEY "0123456789abcdef0123456789abcdef"

/* The first byte says which message the rest is. */
const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("\x00" TASK1 "\x12\x10" INC "\x1a\x03"
              "0.1\x22\x03"
              "job\x2a\x03"
              "clu\x32\x03"
              "a,b\x3a\x03"
              "cpu\x40\x01\x4a\x04onex\x52\x00\x58\x07\x62\x03"
              "a:1\x6a\x01h"),
    FUZZ_SEED("\x01" TASK0 "\x12\x10" INC
              "\x18\x01\x20\x64\x2a\x05train\x30\x0a\x39\x00\x00\x00\x00\x00\x00\xf0"
              "\x3f\x48\x02"),
    FUZZ_SEED("\x02" TASK1 "\x12\x10" INC "\x18\x01\x20\x64\x28\x02\x32\x0bloss is NaN"),
    FUZZ_SEED("\x03\x0a\x1d\x0a\x17" TASK1 "\x12\x02no\x10\x01\x18\x02"),
    FUZZ_SEED("\x03\x12\x8e\x01\x08\x01\x12\x31" MEMBER0 "\x12\x31" MEMBER1 "\x1a\x20" KEY
              "\x28\x05\x30\x01"),
    FUZZ_SEED("\x03\x1a\x1d\x08\x01\x12\x11\x0a\x06worker\x10\x01\x1a\x05"
              "b:222\x1a\x04lost\x20\x01"),
    FUZZ_SEED("\x03\x22\x02\x10\x01"),
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

static int check_join(Trainerd__V1__JoinRequest *m, struct err *err)
{
    struct member_join j;
    int rc = wire_check_join(&cluster, m, &j, err);

    if (rc < 0)
        return rc;
    CHECK(j.n_devices > 0 &&
          (j.rank == UINT32_MAX || strcmp(m->task->type, tasks[j.rank].type) == 0));
    check_fact(j.ident.version, 64);
    check_fact(j.ident.cluster, WIRE_BYTES_MAX);
    check_fact(j.ident.kernels, 256);
    check_fact(m->data_address, 320);
    return 0;
}

static int check_beat(Trainerd__V1__HeartbeatRequest *m, struct err *err)
{
    struct member_beat b;
    int rc = wire_check_beat(&cluster, m, &b, err);

    if (rc < 0)
        return rc;
    CHECK(b.rank < WORLD);
    check_fact(b.phase, 31);
    return 0;
}

static int check_leave(Trainerd__V1__LeaveRequest *m, struct err *err)
{
    struct wire_leave l;
    int rc = wire_check_leave(&cluster, m, &l, err);

    if (rc < 0)
        return rc;
    CHECK(l.rank < WORLD && l.kind <= MEMBER_LEAVE_FAILED && l.incarnation != NULL);
    check_fact(l.reason, MEMBER_TEXT_BYTES - 1);
    return 0;
}

static int check_event(Trainerd__V1__JoinEvent *m, struct err *err)
{
    int rc = wire_check_event(&cluster, 0, (const uint8_t *)INC, m, err);

    if (rc < 0)
        return rc;
    if (m->event_case == TRAINERD__V1__JOIN_EVENT__EVENT_VIEW) {
        CHECK(m->view->n_members == WORLD && m->view->newest_member < WORLD &&
              m->view->generation > 0);
        for (uint32_t i = 0; i < WORLD; i++)
            CHECK(m->view->members[i]->task->index == i && m->view->members[i]->n_devices > 0);
    } else if (m->event_case == TRAINERD__V1__JOIN_EVENT__EVENT_WAITING) {
        for (size_t i = 0; i < m->waiting->n_missing; i++)
            CHECK(wire_rank(&cluster, m->waiting->missing[i]->task) < WORLD);
    } else if (m->event_case == TRAINERD__V1__JOIN_EVENT__EVENT_OVER) {
        check_fact(m->over->reason, MEMBER_TEXT_BYTES - 1);
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const ProtobufCMessageDescriptor *const types[] = {
        &trainerd__v1__join_request__descriptor,
        &trainerd__v1__heartbeat_request__descriptor,
        &trainerd__v1__leave_request__descriptor,
        &trainerd__v1__join_event__descriptor,
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
            rc = check_join(m, &err);
        else if (kind == 1)
            rc = check_beat(m, &err);
        else if (kind == 2)
            rc = check_leave(m, &err);
        else
            rc = check_event(m, &err);
        CHECK(rc == 0 || (rc == ERR_INPUT && err.text[0] != '\0'));
    }
    wire_fini(&w);
    return 0;
}
