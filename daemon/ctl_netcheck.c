/* ctl_netcheck.c - `trainerctl netcheck`: lets running tasks measure every pair of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <protobuf-c/protobuf-c.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/text.h"
#include "daemon/args.h"
#include "daemon/ctl.h"
#include "daemon/ctl_group.h"
#include "daemon/netcheck_text.h"
#include "preflight/schedule.h"
#include "preflight/types.h"
#include "proto/trainerd.pb-c.h"

enum {
    PASSES = 2, /* of all rounds: the better number of each direction counts */
    MS = 200,   /* of a transfer */
    MS_MAX = 2000,
    BYTES = 64 << 20,
    TASKS_MAX = 1024,
};

static const char usage[] =
    "usage: trainerctl netcheck [flags] ADDR\n"
    "\n"
    "Lets the running tasks of a group measure round trip and rate of every pair, in both directions.\n"
    "ADDR is any of them; they may wait for each other, or train: then their traffic counts too. Only\n"
    "disjoint pairs measure at the same time. Prints a table, slow hosts and links beside the median,\n"
    "and racks, with a proposed TRAINERD_LOCATION for each task.\n\n";

struct check {
    struct ctl_group group;
    struct netcheck net;    /* its names are those of the group */
    uint32_t round;
    uint32_t ms;
    struct err *errors; /* [n] owned; of the pairs that the task measured; code 0: none */
};

static void fill_task(const struct ctl_task *from, Trainerd__V1__Task *out, char type[64])
{
    char *blank;

    trainerd__v1__task__init(out);
    snprintf(type, 64, "%s", from->name);
    blank = strrchr(type, ' ');
    CHECK(blank != NULL); /* the name was made of type and index */
    *blank = '\0';
    out->type = type;
    out->index = (uint32_t)strtoul(blank + 1, NULL, 10);
    out->address = from->address;
}

/* Measures one direction. */
static int measure(struct check *c, uint32_t from, uint32_t to, struct err *err)
{
    struct racks_pair *pair = &c->net.pairs[(size_t)from * c->net.n + to];
    Trainerd__V1__NetcheckRequest q = TRAINERD__V1__NETCHECK_REQUEST__INIT;
    Trainerd__V1__NetcheckReply *opened = NULL, *done = NULL;
    const ProtobufCMessageDescriptor *type = &trainerd__v1__netcheck_reply__descriptor;
    Trainerd__V1__Task peer;
    char name[64];
    void *reply = NULL;
    int rc = ctl_task_call(&c->group.tasks[to], "Netcheck", &q.base, type, NULL, &reply, err);

    opened = reply;
    if (rc < 0)
        return err_wrap(err, rc, "%s", c->group.tasks[to].name);
    fill_task(&c->group.tasks[to], &peer, name);
    q.peer = &peer;
    q.port = opened->port;
    q.ticket = opened->ticket;
    q.ms = c->ms;
    q.bytes = BYTES;
    rc = ctl_task_call(&c->group.tasks[from], "Netcheck", &q.base, type, NULL, &reply, err);
    if (rc == 0) {
        done = reply;
        pair->rtt_us = pair->rtt_us == 0 || done->round_trip_us < pair->rtt_us ? done->round_trip_us
                                                                               : pair->rtt_us;
        pair->rate = done->rate > pair->rate ? done->rate : pair->rate;
        protobuf_c_message_free_unpacked(&done->base, NULL);
    }
    protobuf_c_message_free_unpacked(&opened->base, NULL);
    return rc < 0 ? err_wrap(err, rc, "from %s to %s", c->group.tasks[from].name,
                             c->group.tasks[to].name)
                  : 0;
}

/* Both directions of the pair whose lower task this is. */
static void measure_pair(struct ctl_task *t)
{
    struct check *c = t->arg;
    uint32_t a = (uint32_t)(t - c->group.tasks), b = schedule_partner(c->net.n, c->round, a);
    struct err err = { 0 };

    if (b == PREFLIGHT_NO_TASK || b < a)
        return;
    if (measure(c, a, b, &err) < 0)
        c->errors[a] = err;
    if (measure(c, b, a, &err) < 0)
        c->errors[a] = err;
}

static void measure_all(struct check *c)
{
    for (uint32_t i = 0; i < c->net.n; i++)
        c->group.tasks[i].arg = c;
    for (uint32_t pass = 0; pass < PASSES; pass++)
        for (c->round = 0; c->round < schedule_rounds(c->net.n); c->round++)
            ctl_group_each(&c->group, measure_pair);
}

static int open_check(const char *address, struct check *c, struct err *err)
{
    int rc = ctl_group_open(address, &c->group, err);
    size_t n = c->group.n;

    if (rc < 0)
        return rc;
    if (n < 2 || n > TASKS_MAX)
        return err_set(err, ERR_INPUT, "expected a group of 2 to %d tasks, found %zu", TASKS_MAX,
                       n);
    c->net.n = (uint32_t)n;
    c->net.tasks = calloc(n, sizeof(*c->net.tasks));
    c->net.pairs = calloc(n * n, sizeof(*c->net.pairs));
    c->errors = calloc(n, sizeof(*c->errors));
    if (c->net.tasks == NULL || c->net.pairs == NULL || c->errors == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++)
        c->net.tasks[i] = (struct netcheck_task){ c->group.tasks[i].name, c->group.tasks[i].address };
    return 0;
}

static void close_check(struct check *c)
{
    ctl_group_close(&c->group);
    racks_free(&c->net.racks);
    free(c->net.tasks);
    free(c->net.pairs);
    free(c->errors);
}

/* Returns true if all pairs were measured. */
static bool report_errors(const struct check *c)
{
    bool all = true;

    for (uint32_t i = 0; i < c->net.n; i++)
        if (c->errors[i].code != 0) {
            fprintf(stderr, "trainerctl: not measured: %s\n", c->errors[i].text);
            all = false;
        }
    return all;
}

static int netcheck(const char *address, uint32_t ms, bool json)
{
    struct check c = { .ms = ms };
    struct buf out = { 0 };
    struct err err;
    int rc = open_check(address, &c, &err), code = CTL_OK;

    if (rc == 0) {
        measure_all(&c);
        rc = racks_find(c.net.pairs, c.net.n, &c.net.racks, &err);
    }
    if (rc == 0) {
        code = report_errors(&c) && c.net.racks.n_findings == 0 ? CTL_OK : CTL_FAILED;
        if (json)
            netcheck_json(&c.net, &out);
        else
            netcheck_text(&c.net, &out);
        if (out.failed || fwrite(out.data, 1, out.len, stdout) != out.len)
            rc = err_set(&err, ERR_IO, "the result cannot be printed");
        buf_fini(&out);
    }
    close_check(&c);
    if (rc < 0) {
        fprintf(stderr, "trainerctl: netcheck: %s\n", err.text);
        code = ctl_exit_code(rc);
    }
    return code;
}

int ctl_netcheck(int argc, char **argv)
{
    const char *given = NULL;
    bool asked = false, json = false;
    const struct arg table[] = {
        { "ms", "N", NULL, "longest duration of a transfer, 20 to 2000 (default 200); each\nsends at most 64 MiB", &given, NULL },
        { "json", NULL, NULL, "print JSON: every number, and the findings", NULL, &json },
        { "help", NULL, NULL, "print this, exit", NULL, &asked },
    };
    uint64_t ms = MS;
    struct err err = { 0 };
    int rc = args_parse(table, COUNT_OF(table), &argc, argv, &err);

    if (rc == 0 && asked) {
        fputs(usage, stdout);
        args_help(table, COUNT_OF(table), stdout);
        printf(
            "Exit code 0: no slow host or link; 1: there is one, or a pair was not measured; 2: invalid input.\n");
        return CTL_OK;
    }
    if (rc == 0 && argc != 2)
        rc = err_set(&err, ERR_INPUT,
                     "expected one address, found %d arguments; --help shows the usage", argc - 1);
    if (rc == 0 && given != NULL && (!text_u64(given, MS_MAX, &ms) || ms < 20))
        rc = err_set(&err, ERR_INPUT, "--ms: expected a number from 20 to %d, found '%.40s'",
                     MS_MAX, given);
    if (rc < 0) {
        fprintf(stderr, "trainerctl: netcheck: %s\n", err.text);
        return CTL_USAGE;
    }
    return netcheck(argv[1], (uint32_t)ms, json);
}
