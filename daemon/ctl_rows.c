/* ctl_rows.c - `trainerctl rows`: rows of an embedding table that parameter servers hold. */
#include <inttypes.h>
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
#include "proto/trainerd.pb-c.h"

enum { TRIES = 20 }; /* while the job trains, two servers may be one step apart */

struct query {
    Trainerd__V1__RowsRequest request;
    char **words; /* [request.n_rows] the rows as they were given; borrowed */
    struct ctl_group group;
    Trainerd__V1__RowsReply **replies; /* [group.n] owned; NULL: no parameter server, or it failed */
};

static void free_replies(struct query *q)
{
    for (size_t i = 0; q->replies != NULL && i < q->group.n; i++)
        if (q->replies[i] != NULL) {
            protobuf_c_message_free_unpacked(&q->replies[i]->base, NULL);
            q->replies[i] = NULL;
        }
}

/* Calls every parameter server. *step: that of the replies; 0: no reply. *differ: they are of several
 * steps. */
static int ask(struct query *q, uint64_t *step, bool *differ, struct err *err)
{
    size_t n_ps = 0;
    int rc = 0;

    free_replies(q);
    *step = 0;
    *differ = false;
    for (size_t i = 0; rc == 0 && i < q->group.n; i++) {
        void *reply = NULL;

        if (strncmp(q->group.tasks[i].name, "ps ", 3) != 0)
            continue;
        rc = ctl_task_call(&q->group.tasks[i], "Rows", &q->request.base,
                           &trainerd__v1__rows_reply__descriptor, NULL, &reply, err);
        if (rc < 0)
            return err_wrap(err, rc, "%s", q->group.tasks[i].name);
        q->replies[i] = reply;
        *differ = *differ || (n_ps > 0 && q->replies[i]->step != *step);
        *step = q->replies[i]->step;
        n_ps++;
    }
    return n_ps > 0 ? rc : err_set(err, ERR_NOENT, "the group has no parameter server");
}

/* Returns the values of a row; NULL: no server holds it. *is_initial: of a dynamic table, and no step has trained it. */
static const uint8_t *find(const struct query *q, uint64_t row, uint32_t *width, bool *is_initial)
{
    for (size_t i = 0; i < q->group.n; i++) {
        const Trainerd__V1__RowsReply *r = q->replies[i];

        for (size_t k = 0; r != NULL && k < r->n_rows; k++)
            if (r->rows[k] == row && r->values.len >= (k + 1) * r->width * sizeof(float)) {
                *width = r->width;
                *is_initial = k < r->n_initial && r->initial[k];
                return r->values.data + k * r->width * sizeof(float);
            }
    }
    return NULL;
}

static int print(const struct query *q, uint64_t step, bool json, struct err *err)
{
    struct buf out = { 0 }, initial = { 0 };
    int rc = 0;

    if (json)
        buf_printf(&out, "{\"step\": %" PRIu64 ", \"rows\": {", step);
    for (size_t i = 0; rc == 0 && i < q->request.n_rows; i++) {
        uint32_t width = 0;
        bool is_initial = false;
        const uint8_t *at = find(q, q->request.rows[i], &width, &is_initial);

        if (at == NULL) {
            rc = err_set(err, ERR_PEER, "row %s: no parameter server holds it now; try again",
                         q->words[i]);
            break;
        }
        buf_printf(&out, json ? "%s\"%s\": [" : "%s%s:", json && i > 0 ? ", " : "", q->words[i]);
        for (uint32_t k = 0; k < width; k++) {
            float v;

            memcpy(&v, at + k * sizeof(v), sizeof(v));
            buf_str(&out, json ? (k > 0 ? ", " : "") : " ");
            buf_f32(&out, v);
        }
        buf_str(&out, json ? "]" : is_initial ? "  (initial)\n" : "\n");
        if (json && is_initial)
            buf_printf(&initial, "%s\"%s\"", initial.len > 0 ? ", " : "", q->words[i]);
    }
    if (json)
        buf_printf(&out, "}, \"initial\": [%s]}\n", initial.len > 0 ? initial.data : "");
    if (rc == 0 && (out.failed || initial.failed))
        rc = err_set(err, ERR_NOMEM, "out of memory");
    if (rc == 0)
        fputs(out.data, stdout);
    buf_fini(&out);
    buf_fini(&initial);
    return rc;
}

static int rows(const char *address, struct query *q, bool json, struct err *err)
{
    bool differ = true;
    uint64_t step;
    int rc = ctl_group_open(address, &q->group, err);

    if (rc < 0)
        return rc;
    q->replies = calloc(q->group.n + 1, sizeof(*q->replies));
    CHECK(q->replies != NULL);
    for (int i = 0; i < TRIES && differ; i++) {
        rc = ask(q, &step, &differ, err);
        if (rc == ERR_PEER) /* the rows changed, or a generation ended */
            differ = true;
        else if (rc < 0)
            break;
    }
    if (rc == 0 && differ)
        rc = err_set(err, ERR_PEER, "the steps are too short to read the rows of one step from all "
                                    "parameter servers; try again");
    if (rc == 0)
        rc = print(q, step, json, err);
    free_replies(q);
    free(q->replies);
    ctl_group_close(&q->group);
    return rc;
}

/* A number of a row, or an id, which may be negative. */
static bool parse_row(const char *word, uint64_t *out)
{
    if (word[0] != '-')
        return text_u64(word, UINT64_MAX, out);
    if (!text_u64(word + 1, (uint64_t)INT64_MAX + 1, out))
        return false;
    *out = -*out;
    return true;
}

static int parse_rows(char **argv, int n, uint64_t *out, struct err *err)
{
    for (int i = 0; i < n; i++)
        if (!parse_row(argv[i], &out[i]))
            return err_set(err, ERR_INPUT, "'%.80s': expected the number of a row, or an id",
                           argv[i]);
    return 0;
}

int ctl_rows(int argc, char **argv)
{
    const char *part = "";
    bool asked = false, json = false;
    const struct arg table[] = {
        { "part", "NAME", NULL, "a slot of the optimizer or \"average\", in place of the weights", &part, NULL },
        { "json", NULL, NULL, "print one JSON object", NULL, &json },
        { "help", NULL, NULL, "print this", NULL, &asked },
    };
    struct query q = { .request = TRAINERD__V1__ROWS_REQUEST__INIT };
    struct err err;
    int rc = args_parse(table, COUNT_OF(table), &argc, argv, &err);

    if (rc == 0 && (asked || argc < 4)) {
        fprintf(asked ? stdout : stderr,
                "usage: trainerctl rows [--part NAME] [--json] ADDR TABLE ROW...\n"
                "Prints rows of an embedding table on parameter servers, all after the same step. ADDR is any "
                "task of the group. The rows of a dynamic table are ids; one that no step has trained has its "
                "initial values, and is marked.\n\n");
        if (asked)
            args_help(table, COUNT_OF(table), stdout);
        return asked ? CTL_OK : CTL_USAGE;
    }
    if (rc == 0) {
        uint64_t *numbers = calloc((size_t)argc, sizeof(*numbers));

        CHECK(numbers != NULL);
        q.request.table = argv[2];
        q.request.part = (char *)part;
        q.request.n_rows = (size_t)argc - 3;
        q.request.rows = numbers;
        q.words = argv + 3;
        rc = parse_rows(argv + 3, argc - 3, numbers, &err);
        if (rc == 0)
            rc = rows(argv[1], &q, json, &err);
        free(numbers);
    }
    if (rc < 0)
        fprintf(stderr, "trainerctl: %s\n", err.text);
    return rc < 0 ? ctl_exit_code(rc) : CTL_OK;
}
