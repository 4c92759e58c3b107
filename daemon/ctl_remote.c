/* ctl_remote.c - the commands that send one RPC to one task. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/text.h"
#include "daemon/args.h"
#include "daemon/ctl.h"
#include "base/check.h"
#include "daemon/ctl_status.h"
#include "daemon/security.h"
#include "daemon/status_json.h"
#include "proto/trainerd.pb-c.h"
#include "rdzv/rdzv.h"

enum { CALL_MS = 5000, RELOAD_MS = 60000, SAVE_MS = 600000 };

struct remote {
    const char *method, *usage;
    uint64_t deadline_ms;
    /* Prints the reply and returns an exit code. NULL: the reply is empty and `done` is printed. */
    int (*print)(const void *packed, size_t n, bool json);
    const char *done;
};

static int print_status(const void *packed, size_t n, bool json)
{
    Trainerd__V1__StatusReply *s = trainerd__v1__status_reply__unpack(NULL, n, packed);
    struct buf out = { 0 };

    if (s == NULL)
        return CTL_FAILED;
    if (json)
        status_json(s, &out);
    else
        ctl_status_text(s, &out);
    trainerd__v1__status_reply__free_unpacked(s, NULL);
    if (!out.failed && out.len > 0)
        fwrite(out.data, 1, out.len, stdout);
    buf_fini(&out);
    return CTL_OK;
}

static int print_checkpoint(const void *packed, size_t n, bool json)
{
    Trainerd__V1__CheckpointReply *c = trainerd__v1__checkpoint_reply__unpack(NULL, n, packed);

    (void)json;
    if (c == NULL)
        return CTL_FAILED;
    printf("step %llu: %s\n", (unsigned long long)c->step, c->path);
    trainerd__v1__checkpoint_reply__free_unpacked(c, NULL);
    return CTL_OK;
}

static int print_reload(const void *packed, size_t n, bool json)
{
    Trainerd__V1__ReloadReply *m = trainerd__v1__reload_reply__unpack(NULL, n, packed);

    (void)json;
    if (m == NULL)
        return CTL_FAILED;
    if (m->n_changes == 0)
        printf("no key changed\n");
    for (size_t i = 0; i < m->n_changes; i++) {
        const Trainerd__V1__ReloadChange *c = m->changes[i];

        printf("%s: %s -> %s%s%s\n", c->key, c->from, c->to,
               c->note[0] != '\0' ? "; not applied: " : "", c->note);
    }
    trainerd__v1__reload_reply__free_unpacked(m, NULL);
    return CTL_OK;
}

static int remote(const struct remote *m, int argc, char **argv)
{
    bool json = false, wants_help = false;
    const struct arg table[] = {
        { "json", NULL, NULL, "print JSON", NULL, &json },
        { "help", NULL, NULL, "print this", NULL, &wants_help },
    };
    struct security security = { .tls = NULL };
    struct err err;
    void *reply = NULL;
    size_t n = 0;
    int rc;

    if (args_parse(table, COUNT_OF(table), &argc, argv, &err) < 0) {
        fprintf(stderr, "trainerctl: %s\n", err.text);
        return CTL_USAGE;
    }
    if (wants_help || argc != 2) {
        fprintf(wants_help ? stdout : stderr, "usage: trainerctl %s\n", m->usage);
        return wants_help ? CTL_OK : CTL_USAGE;
    }
    rc = security_open(&(struct security_opts){ .address = argv[1] }, &security, &err);
    if (rc == 0)
        rc = rdzv_call(argv[1], security.tls, security.token, m->method, m->deadline_ms, &reply, &n,
                       &err);
    security_close(&security);
    if (rc < 0) {
        fprintf(stderr, "trainerctl: %s\n", err.text);
        return rc == ERR_INPUT ? CTL_USAGE : CTL_FAILED;
    }
    rc = CTL_OK;
    if (m->print != NULL)
        rc = m->print(reply, n, json);
    else
        printf("%s %s\n", argv[1], m->done);
    free(reply);
    if (rc == CTL_FAILED)
        fprintf(stderr, "trainerctl: %s sent an invalid %s reply\n", argv[1], m->method);
    return rc;
}

int ctl_status(int argc, char **argv)
{
    static const struct remote m = { "Status", "status [--json] ADDR", CALL_MS, print_status, NULL };

    return remote(&m, argc, argv);
}

int ctl_checkpoint(int argc, char **argv)
{
    static const struct remote m = { "Checkpoint", "checkpoint ADDR", SAVE_MS, print_checkpoint, NULL };

    return remote(&m, argc, argv);
}

int ctl_reload(int argc, char **argv)
{
    static const struct remote m = { "Reload", "reload ADDR", RELOAD_MS, print_reload, NULL };

    return remote(&m, argc, argv);
}

int ctl_drain(int argc, char **argv)
{
    static const struct remote m = { "Drain", "drain ADDR", CALL_MS, NULL,
                                     "accepted the request: the task saves and ends, which its log reports" };

    return remote(&m, argc, argv);
}

int ctl_stop(int argc, char **argv)
{
    static const struct remote m = { "Stop", "stop ADDR", CALL_MS, NULL,
                                     "accepted the request: the job saves and ends on every task" };

    return remote(&m, argc, argv);
}
